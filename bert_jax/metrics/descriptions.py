"""Descriptions of the scalars of a run: the text behind the (i) of a TensorBoard chart."""

from typing import Final

from bert_jax.metrics.neighbor_attention import PREFIX

# By the last part of a scalar's name: "train/nsp/books/accuracy" has that of "accuracy".
_BY_LAST_PART: Final = {
    "loss": "Mean loss of a prediction, in nats; of all objectives together, the sum of theirs.",
    "accuracy": "Share of the predictions that are right.",
    "baseline_loss": "Loss of always predicting the frequencies of the labels: the loss without "
    "reading the text.",
    "baseline_accuracy": "Accuracy of always predicting the most frequent label.",
    "source_loss": "Loss of predicting the frequencies of the labels in the example's source.",
    "source_accuracy": "Accuracy of predicting the most frequent label of the example's source.",
    "loss_margin": "Half the width of the loss's 95 % interval, by the choice of documents.",
    "accuracy_margin": "Half the width of the accuracy's 95 % interval, by the choice of "
    "documents.",
    "count": "Number of predictions that the means are of.",
    "documents": "Number of documents that the means are of.",
    "padding": "Share of the positions in the rows that hold no token.",
    "learning_rate": "Learning rate of the last step.",
    "grad_norm": "Norm of the gradients of the last step, before clipping.",
    "step_seconds": "Mean time of a step in seconds, without evaluating and saving.",
    "tokens_per_second": "Real tokens, without padding, that all devices train on in a second.",
    "skipped_steps": "Steps that were skipped because a loss or a gradient was not finite.",
    "flops_utilization": "Share of the devices' peak operations per second that the model uses.",
    "data_wait_max": "Longest mean time that a host waits for the batch of a step, in seconds.",
    "data_wait_median": "Median over the hosts of the time that one waits for a batch, in seconds.",
}
_ATTENTION = "Share of a head's attention on the neighbouring token of this side."


def description(tag: str) -> str:
    """Returns the description of a scalar, "" if there is none."""
    kind, _, name = tag.partition("/")
    if name.startswith(PREFIX):
        return _ATTENTION
    return _BY_LAST_PART.get((name or kind).rpartition("/")[2], "")
