"""`config.task`: the task that `bert-jax finetune` trains a model for."""

import dataclasses
from typing import Annotated, Literal

from bert_jax.data_pipeline.settings import Share, Within


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The files of a task, and how a run is made from them. Without a name, a run pretrains.

    `config.phases` has one phase, whose `batch_size` counts examples and whose `steps` follow from
    `epochs`; with `examples_per_row` above 1, whole examples are packed into rows.
    """

    name: str = ""  # a task of GLUE, such as "sst2", or "classification" or "regression"
    data: str = ""  # of GLUE: the folder of its files; else a .tsv, .csv or .jsonl file
    held_out: str = ""  # such a file for evaluation; "" = GLUE's dev, or a tenth of the rows
    text: str = "text"  # columns of such a file
    pair: str = ""  # of the second text, if there is one
    label: str = "label"  # of the class, or of the score
    tokenizer: str = ""  # a tokenizer.json or vocab.txt, for random weights (no config.init)
    epochs: Annotated[float, Within(0, 10_000, without=(0,))] = 3.0
    warmup_share: Share = 0.1  # of the steps
    evaluations: Annotated[int, Within(1, 1000)] = 1  # an epoch
    # A batch has an example of each stratum of lengths, so that all batches fill the same rows, or
    # any examples.
    batches: Literal["strata", "shuffle"] = "strata"
    keep: Literal["last", "best"] = "last"  # step that predicts; best: by the task's metric
