"""`config.task`: the task that `bert-jax finetune` trains a model for."""

import dataclasses
from typing import Annotated, Literal

from bert_jax.data_pipeline.settings import Share, Within

Join = Literal["concat", "mean"]
Pooling = Literal["mean", "cls", "max"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The files of a task, and how a run is made from them. Without a name, a run pretrains.

    `config.phases` has one phase, whose `batch_size` counts examples and whose `steps` follow from
    `epochs`; with `examples_per_row` above 1, whole examples are packed into rows.
    """

    # A task of GLUE, such as "sst2", or "classification", "regression", "tagging" or
    # "question_answering".
    name: str = ""
    data: str = ""  # the folder of its files, or a file: a table, CoNLL's or SQuAD's
    held_out: str = ""  # such a file for evaluation; "" = dev in the folder, or a tenth of the file
    # Columns of such a file; of CoNLL's their numbers, by default the first and the last.
    text: str = "text"
    pair: str = ""  # of the second text, if there is one
    label: str = "label"  # of the class, or of the score
    # Of questions, in tokens: from the start of a window in a long text to that of the next; and
    # the longest question, whose rest is cut off, and answer.
    stride: Annotated[int, Within(1, 2**17)] = 128
    max_question: Annotated[int, Within(1, 2**17)] = 64
    max_answer: Annotated[int, Within(1, 2**17)] = 30
    n_best: Annotated[int, Within(1, 2**17)] = 20  # answers that are kept, and their ends
    # The answer is "" where that scores higher than the best one by more than this, as in SQuAD
    # 2.0; None: every question has an answer, as in 1.1.
    null_threshold: Annotated[float, Within(-1e9, 1e9)] | None = None
    # The softmax that a question's loss is of: over the tokens of its window, or over the whole
    # padded row, as in run_squad.py and transformers.
    answer_softmax: Literal["window", "row"] = "window"
    # A question whose answer is not in its text at its offset is an error; else it is left out.
    strict: bool = False
    # "[SEP]" in a text is text, as in run_classifier.py; else a special token, as in transformers.
    split_special_tokens: bool = False
    tokenizer: str = ""  # a tokenizer.json or vocab.txt, for random weights (no config.init)
    epochs: Annotated[float, Within(0, 10_000, without=(0,))] = 3.0
    warmup_share: Share = 0.1  # of the steps
    evaluations: Annotated[int, Within(1, 1000)] = 1  # an epoch
    # A batch has an example of each stratum of lengths, so that all batches fill the same rows, or
    # any examples.
    batches: Literal["strata", "shuffle"] = "strata"
    keep: Literal["last", "best"] = "last"  # step that predicts; best: by the task's metric
    # Layers whose states a linear head reads, such as "-4:", with a frozen encoder; "" = the whole
    # model is trained.
    layers: str = ""
    join: Join = "concat"  # of these layers
    pooling: Pooling = "mean"  # over the tokens of an example
