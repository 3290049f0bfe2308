"""Writes scalars as TensorBoard event files, appended like other records (see `jsonl`).

tensorboardX's writer passes events to a thread that dies when the disk is full, and then blocks on
it; only its protocol buffers are used here.
"""

import html
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from etils import epath

from bert_jax.metrics.jsonl import Appender
from bert_jax.metrics.neighbor_attention import PREFIX
from bert_jax.runtime.imports import hidden
from bert_jax.storage.tfrecord import framed

with hidden("torch", "google.cloud.storage"):  # for graphs and buckets; seconds of every start
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.summary import hparams as hparam_summaries
    from tensorboardX.summary import scalar, text

_COMPARED: Final = ("train/loss", "eval/loss")  # columns of the table of runs, after the hparams
# What each scalar measures, the text behind the (i) of a chart, by the last part of its name:
# "train/nsp/books/accuracy" has that of "accuracy".
_BY_LAST_PART: Final = {
    "loss": "Mean loss of a prediction, in nats; of all objectives together, the sum of theirs.",
    "accuracy": "Share of the predictions that are right.",
    "baseline_loss": "Loss of always predicting the frequencies of the labels: the loss without "
    "reading the text.",
    "baseline_accuracy": "Accuracy of always predicting the most frequent label.",
    "teacher_loss": "Divergence from the probabilities of the teacher, in nats, or squared error.",
    "teacher_agreement": "Share of the first guesses that are those of the teacher.",
    "baseline_teacher_loss": "Divergence of the best constant prediction from the teacher.",
    "baseline_teacher_agreement": "Agreement of the best constant prediction with the teacher.",
    "kl": "Divergence of the student's predictions from the teacher's at the temperature, in nats.",
    "agreement": "Share of the first guesses that are those of the teacher.",
    "cosine": "Mean cosine of the last states of student and teacher.",
    "baseline_kl": "Divergence of the frequencies of the tokens from the teacher's predictions.",
    "baseline_agreement": "Share of the teacher's first guesses that are the most frequent token.",
    "right_draws": "Share of the generator's draws that are the original token.",
    "source_loss": "Loss of predicting the frequencies of the labels in the example's source.",
    "source_accuracy": "Accuracy of predicting the most frequent label of the example's source.",
    "precision": "Share of the tokens that seem to be replaced that are.",
    "recall": "Share of the replaced tokens that seem to be.",
    "auc": "Probability that a replaced token has a higher score than an original one.",
    "loss_margin": "Half the width of the loss's 95 % interval, by the choice of documents.",
    "accuracy_margin": "Half the width of the accuracy's 95 % interval, by the choice of "
    "documents.",
    "baseline_loss_margin": "Half the width of the baseline's 95 % interval, by the choice of "
    "documents.",
    "baseline_accuracy_margin": "Half the width of the baseline's 95 % interval, by the choice of "
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
_MARKUP: Final = frozenset(r"\`*_[]|~")  # of Markdown
_ATTENTION = "Share of a head's attention on the neighbouring token of this side."


class ScalarEvents:
    """A new event file in a folder, for one start of a run; `write` never raises."""

    def __init__(
        self,
        folder: epath.Path,
        first_step: int,
        hparams: Mapping[str, Any] = MappingProxyType({}),
    ):
        """first_step: step resumed from; TensorBoard discards older events beyond it. hparams: for
        its table of runs."""
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        header = _record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._appender = Appender(folder / name, header=header)
        begins = Event(step=first_step, session_log=SessionLog(status=SessionLog.START))
        self._appender.append(_record(begins))
        if hparams:
            experiment, session, _ = hparam_summaries(hparams, dict.fromkeys(_COMPARED))
            for summary in (experiment, session):
                self._appender.append(_record(Event(wall_time=time.time(), summary=summary)))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars by name after `step` updates."""
        now = time.time()
        summaries = (
            scalar(name, value, summary_description=description(name))
            for name, value in scalars.items()
        )
        events = (Event(wall_time=now, step=step, summary=summary) for summary in summaries)
        self._appender.append(b"".join(map(_record, events)))

    def add_table(
        self, step: int, name: str, header: Sequence[str], rows: Iterable[Sequence[str]]
    ) -> None:
        """Writes a table after `step` updates as text, in which nothing is markup."""
        lines = [header, ["---"] * len(header), *([*map(_literal, row)] for row in rows)]
        text_of = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        event = Event(wall_time=time.time(), step=step, summary=text(name, text_of))
        self._appender.append(_record(event))

    def close(self) -> None:
        self._appender.close()


def _literal(words: str) -> str:
    """Returns words for a cell of a table in Markdown."""
    shown = html.escape(" ".join(words.split()))
    return "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in shown)


def _record(event: Event) -> bytes:
    return framed(event.SerializeToString())


def description(tag: str) -> str:
    """Returns the description of a scalar, "" if there is none."""
    kind, _, name = tag.partition("/")
    if name.startswith(PREFIX):
        return _ATTENTION
    return _BY_LAST_PART.get((name or kind).rpartition("/")[2], "")
