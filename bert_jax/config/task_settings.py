"""`config.task`: the task that `bert-jax finetune` trains a model for."""

import dataclasses
from collections.abc import Iterable
from dataclasses import field
from typing import Annotated, Literal

from bert_jax.config.on_resume import FREE
from bert_jax.config.ranges import BelowOne
from bert_jax.config.sentence_parts import POOLS
from bert_jax.data_pipeline.settings import Listed, Share, Whole, Within
from bert_jax.errors import UserError

Join = Literal["concat", "mean"]
Pooling = Annotated[str, Listed(POOLS)]
Directions = Literal["one", "both"]
ScoreLoss = Literal["cosine", "cosent"]
Order = Literal["strata", "shuffle"]  # of the examples, see `finetune.order`


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The files of a task, and how a run is made from them. Without a name, a run pretrains.

    `config.phases` has one phase, whose `batch_size` counts examples and whose `steps` follow from
    `epochs` and their limits; with `examples_per_row` above 1, whole examples are packed into rows.
    """

    # A task of GLUE, such as "sst2", or "classification", "regression", "tagging",
    # "question_answering", "multiple_choice", "sentence_pairs", "store_pairs", "scored_pairs",
    # "labeled_pairs" or "denoising".
    name: str = ""
    # The folder of its files, or a file: a table, CoNLL's or SQuAD's; or a token store. In place of
    # a table, a split of a dataset on the Hugging Face hub, hf:OWNER/NAME.
    data: str = field(default="", metadata=FREE)
    # Such a file for evaluation; "" = dev in the folder, or a tenth of the file.
    held_out: str = field(default="", metadata=FREE)
    # Of kinds that train vectors of texts: a folder in BEIR's form, as of `evaluate --retrieval`,
    # in which each evaluation searches.
    retrieval: str = field(default="", metadata=FREE)
    # Columns of such a file; of CoNLL's their numbers, by default the first and the last.
    text: str = "text"
    pair: str = ""  # of the second text, or of what all choices begin with, if there is one
    label: str = "label"  # of the class, of the score, or of the right choice
    # Of multiple choice: the columns of the choices, such as "a,b,c"; "" = the columns of SWAG.
    choices: str = ""
    # Question answering, in tokens: from the start of a window in a long text to that of the next;
    # maximum question and answer length, longer questions are truncated.
    stride: Annotated[int, Within(1, 2**17)] = 128
    max_question: Annotated[int, Within(1, 2**17)] = 64
    max_answer: Annotated[int, Within(1, 2**17)] = 30
    # Answers that are kept, and their ends.
    n_best: Annotated[int, Within(1, 2**17)] = 20
    # The answer is "" where that scores higher than the best one by more than this, as in SQuAD
    # 2.0; None: every question has an answer, as in 1.1.
    null_threshold: Annotated[float, Within(-1e9, 1e9)] | None = None
    # The softmax that a question's loss is of: over the tokens of its window, or over the whole
    # padded row, as in run_squad.py and transformers.
    answer_softmax: Literal["window", "row"] = "window"
    # A question whose answer is not in its text at its offset is an error; else it is left out.
    strict: bool = field(default=False, metadata=FREE)
    # "[SEP]" in a text is text, as in run_classifier.py; else a special token, as in transformers.
    split_special_tokens: bool = False
    # A tokenizer.json or vocab.txt, for random weights (no config.init).
    tokenizer: str = field(default="", metadata=FREE)
    epochs: Annotated[float, Within(0, 10_000, without=(0,))] = field(default=3.0, metadata=FREE)
    # Limits of the steps that these epochs make of few or many examples; 0 = none.
    fewest_steps: Whole = field(default=0, metadata=FREE)
    most_steps: Whole = field(default=0, metadata=FREE)
    warmup_share: Share = field(default=0.1, metadata=FREE)  # of the steps
    # An epoch; as many in all where a limit makes it more or fewer epochs.
    evaluations: Annotated[int, Within(1, 1000)] = field(default=1, metadata=FREE)
    # A batch has an example of each stratum of lengths, so that all batches fill the same rows, or
    # any examples.
    batches: Order = "strata"
    # Step that predicts; best: by the task's metric, or by nDCG@10 of `retrieval`.
    keep: Literal["last", "best"] = field(default="last", metadata=FREE)
    # Layers whose states a linear head reads, such as "-4:", with a frozen encoder; "" = the whole
    # model is trained.
    layers: str = ""
    join: Join = "concat"  # of these layers
    # Over the tokens of an example, or of a sentence's vector; several, such as "cls,mean", are
    # joined in this order.
    pooling: Pooling = "mean"
    # Sentence vectors: dense layers after the pool, such as "256" or "3072:Identity:no_bias,768".
    dense: str = ""
    # Sentence vectors: text before the anchor or sentence1, and before the positive and the
    # negatives or sentence2, of which the latter has that of sentence1 unless another is given.
    query_prompt: str = ""
    passage_prompt: str = ""
    normalize: bool = True  # whether a vector is divided by its length
    # Widths at which the first numbers of a vector are trained, too, such as "256,128,64".
    dimensions: str = ""
    # In-batch negatives: each anchor chooses its positive, or each positive its anchor, too.
    directions: Directions = "one"
    # Of a store's sentences: a positive is the sentence itself, with another dropout mask, or the
    # next one of its document; and the most pairs, or sentences, that are taken, evenly spread.
    pairs: Literal["same", "neighbors"] = "same"
    most_pairs: Annotated[int, Within(1, 10**9)] = 1_000_000
    # Of denoising: the share of a sentence's tokens that are deleted.
    deletion: BelowOne = 0.6
    loss: ScoreLoss = "cosine"  # of scored pairs: squared error of the cosine, or CoSENT
    scale: Annotated[float, Within(0, 1e4, without=(0,))] = 20.0  # of cosines in a softmax
    # Scores are from 0 to this number.
    highest_score: Annotated[float, Within(0, 1e9, without=(0,))] = 1.0
    # A fine-tuned model whose outputs for the training examples are learned beside their labels.
    teacher: str = field(default="", metadata=FREE)
    # Of the softmax of both; and the share of the teacher in the loss. The defaults are those of
    # DistilBERT's run_squad_w_distillation.py: alpha_ce, alpha_squad = 0.5.
    temperature: Annotated[float, Within(0, 1e4, without=(0,))] = field(default=2.0, metadata=FREE)
    teacher_weight: Share = field(default=0.5, metadata=FREE)


def check_unused(task: TaskConfig, keys: Iterable[str], why: str) -> None:
    """Raises UserError for a key of `config.task` that is set, and why it has no effect."""
    for key in keys:
        if (value := getattr(task, key)) != getattr(TaskConfig(), key):
            raise UserError(f"config.task.{key}={value} has no effect {why}")
