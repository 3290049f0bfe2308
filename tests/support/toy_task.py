"""A kind of task in one file: how similar two sentences are, by the cosine of their vectors.

An example has two sequences; the head projects the state of each [CLS].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.task_model import TaskModelConfig
from bert_jax.config.task_settings import TaskConfig
from bert_jax.finetune.tasks import metrics, table
from bert_jax.finetune.tasks.encoding import Targets, encode
from bert_jax.finetune.tasks.kind import Measured, Prepared, TaskContext, TaskKind
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.splits import divided
from bert_jax.model.heads import class_logits
from bert_jax.model.layers import Dense, Keys
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States, Tensor
from bert_jax.parallel.global_batch import Batch

SIZE = 8  # of a vector


def _make_head(config: TaskModelConfig, keys: Keys) -> Dense:
    return Dense(config, keys, (config.head_width,), (SIZE,), ("embed", "classes"))


def _logits(head: Dense, states: States, batch: Batch) -> jax.Array:
    """Returns a vector of each sequence, [B, N·2, SIZE]."""
    return class_logits(head, states.at(batch["cls_positions"]))


def _sums(vectors: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    pairs = vectors.reshape(*batch["wanted"].shape, 2, SIZE)
    norms = jnp.sqrt(jnp.sum(jnp.square(pairs), -1) + 1e-6).prod(-1)
    error = pairs.prod(-2).sum(-1) / norms - batch["wanted"]
    weights = batch["wanted_weights"]
    return {"loss": jnp.sum(jnp.square(error) * weights), "count": jnp.sum(weights)}


COSINE = Objective(
    name="cosine",
    title="Cosine similarity",
    head="vector",
    weights="wanted_weights",
    make_head=_make_head,
    logits=_logits,
    sums=_sums,
    baselines=lambda sums, sources: {},
    flops=lambda model, phase: 0.0,
    of_task=True,
    outputs=SIZE,
    tensors=(Tensor("vector.kernel", "vector.weight", 1), Tensor("vector.bias", "vector.bias")),
    head_title="vector",
    pytorch='vectors = dense("vector", hidden[:, 0])\n',
)


@dataclass(frozen=True)
class Pair:
    texts: tuple[str, str]
    wanted: float | None


class SimilarityTask(TaskKind):
    """Two sentences and their similarity, from the columns a, b and similarity of a table."""

    name = "similarity"
    objectives = (COSINE.name,)
    per_token = False

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        return divided(_read(task.data, "similarity"))

    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        return _read(source)

    def labels(self, examples: Examples) -> list[float]:
        return [one.wanted for one in examples.examples if one.wanted is not None]

    def content(self, examples: Examples) -> list[object]:
        return [[*one.texts, one.wanted] for one in examples.examples]

    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        texts = [(text,) for one in examples.examples for text in one.texts]
        encoded = encode(context.tokenizer, context.model, texts, context.limit)
        wanted = np.array(self.labels(examples), np.float32)
        arrays = {"wanted": wanted, "wanted_weights": np.ones_like(wanted)}
        return Prepared(replace(encoded, sequences=2), Targets(of_examples=arrays))

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        return ("spearman",)

    def predictions(
        self,
        task: TaskConfig,
        examples: Examples,
        prepared: Prepared,
        logits: Sequence[np.ndarray],
    ) -> list[float]:
        return [float(np.dot(*(x / np.linalg.norm(x) for x in pair))) for pair in logits]

    def compute_metrics(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[float]
    ) -> Measured:
        return metrics.measure(["spearman"], self.labels(examples), predictions)

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[float]]:
        return {"same length": [-abs(len(a) - len(b)) for a, b in map(_texts, held_out.examples)]}

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[float]
    ) -> Mapping[str, str]:
        return {"out": "".join(f"{one:.6f}\n" for one in predictions)}


def _texts(pair: Pair) -> tuple[str, str]:
    return pair.texts


def _read(path: str, *label: str) -> Examples:
    listed, dropped = table.read_rows(path, ["a", "b", *label])
    pairs = [
        Pair((row["a"], row["b"]), float(row[label[0]]) if label else None) for _, row in listed
    ]
    return Examples(path, "similarity", ("similarity",), tuple(pairs), dropped)


SIMILARITY = SimilarityTask()
