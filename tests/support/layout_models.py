"""Small models of every layout, with every head of a task."""

import dataclasses

import golden_case as cases
import jax
import numpy as np
from small import COMPUTE, model_config

from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert import weights
from bert_jax.convert.task_heads import with_head
from bert_jax.objectives.known_objectives import task_of
from bert_jax.objectives.pretraining_model import init_params

# By `model_type` in config.json.
LAYOUTS = {
    "bert": {},
    "roberta": {"layout": "roberta", "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "distilbert": {"layout": "distilbert", "type_vocab_size": 0},
    "roformer": {"position": "rotary", "hidden_act": "gelu_tanh"},
    "roberta-prelayernorm": {"norm_position": "pre"},
    # A row is longer than three windows; the second of three layers has one.
    "modernbert": {
        "layout": "modernbert", "position": "rotary", "norm_position": "pre", "type_vocab_size": 0,
        "layer_norm_eps": 1e-5, "norm_bias": False, "linear_bias": False, "gated_mlp": True,
        "first_attention_norm": False, "local_attention": 6, "global_attn_every_n_layers": 2,
        "global_rope_theta": 160_000.0, "local_rope_theta": 100.0,
        "hidden_size": 24, "num_attention_heads": 3,
    },
    "albert": {
        "layout": "albert", "hidden_act": "gelu_tanh", "num_hidden_groups": 1, "embedding_size": 16,
    },
    "electra": {"layout": "electra", "embedding_size": 16},
}  # fmt: skip
PREFIXES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "distilbert": "DistilBert",
    "roformer": "RoFormer",
    "roberta-prelayernorm": "RobertaPreLayerNorm",
    "modernbert": "ModernBert",
    "albert": "Albert",
    "electra": "Electra",
}
LABELS = ("negative", "neutral", "positive")
# By objective: the head, its labels, its `problem_type` in config.json, the end of its class.
TASKS = {
    "single_label_classification": ("classifier", LABELS, None, "ForSequenceClassification"),
    "multi_label_classification": (
        "classifier", LABELS, "multi_label_classification", "ForSequenceClassification",
    ),
    "regression": ("classifier", ("score",), None, "ForSequenceClassification"),
    "token_classification": ("tagger", ("O", "B-PER", "I-PER"), None, "ForTokenClassification"),
    "question_answering": ("qa", ("LABEL_0", "LABEL_1"), None, "ForQuestionAnswering"),
    "multiple_choice": ("choice", ("LABEL_0", "LABEL_1"), None, "ForMultipleChoice"),
}  # fmt: skip
# RoFormer's multiple choice reads the last position of a row, padding or not.
EVERY = [
    (layout, task)
    for layout in LAYOUTS
    for task in TASKS
    if (layout, task) != ("roformer", "multiple_choice")
]

# Those whose outputs in transformers are stored.
GOLDEN = [
    (layout, task)
    for layout in ("modernbert", "albert")
    for task in ("mlm", "single_label_classification", "question_answering")
]


def layout_config(layout: str, **changes: object) -> ModelConfig:
    """A model without dropout and without rows for the hardware."""
    fields = {"pad_vocab_to_multiple_of": 1, **LAYOUTS[layout], **changes}
    return dataclasses.replace(model_config(), **fields)


def task_config(layout: str, task: str, **changes: object) -> TaskModelConfig:
    name, labels, problem, _ = TASKS[task]
    model = layout_config(layout, **changes)
    return with_head(model, name, labels, problem_type=problem, dropout=0.0)


def task_params(config: ModelConfig, size: float = 1.0) -> dict:
    """Every tensor has values of its own; matrices and tables are `size` times as large. Without
    the head of a task there is that of the masked language model."""
    learned = (task_of(config.head) if isinstance(config, TaskModelConfig) else "mlm",)
    shapes = jax.eval_shape(lambda: init_params(config, COMPUTE, learned, jax.random.key(0)))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    tensors = weights.to_transformers(zeros, config)
    named = {name: cases.weight(name, tensor.shape) for name, tensor in tensors.items()}
    named = {name: size * x if x.ndim == 2 else x for name, x in named.items()}
    named |= {name: x for name, x in tensors.items() if "embed_positions" in name}  # RoFormer's own
    return weights.from_transformers(named, config)


def task_batch(config: ModelConfig, step: int = 0) -> dict[str, np.ndarray]:
    """The rows of the parity test with labels of the task. Rows have padding, except those with
    answers, whose loss in transformers is over the padding, too."""
    case, draw = cases.TINY, np.random.default_rng(step)
    batch = cases.batch(case, step)
    B, S = batch["input_ids"].shape
    if config.type_vocab_size < 2:
        batch["token_type_ids"] = np.zeros((B, S), np.int32)
    if not isinstance(config, TaskModelConfig):
        return batch
    task, labels = task_of(config.head), len(config.head.labels)
    if config.head.name == "qa":
        words = draw.integers(5, case.vocab_size, (B, S), np.int32)
        batch["input_ids"] = np.where(batch["example_ids"] > 0, batch["input_ids"], words)
        batch["example_ids"] = np.ones((B, S), np.int32)
        batch["position_ids"] = np.tile(np.arange(S, dtype=np.int32), (B, 1))
        starts, ends = np.sort(draw.integers(1, S, (2, B, 1), np.int32), axis=0)
        answers = {"answer_starts": starts, "answer_ends": ends}
        return batch | answers | {"answer_weights": np.ones((B, 1), np.float32)}
    if config.head.name == "tagger":
        weights = batch["example_ids"] * draw.integers(0, 2, (B, S))  # as if some have no label
        tags = draw.integers(0, labels, (B, S), np.int32)
        return batch | {"token_labels": tags, "token_weights": weights.astype(np.float32)}
    if config.head.name == "choice":  # two rows of the case are the choices of an example
        C = 2
        read = ("input_ids", "token_type_ids", "example_ids", "position_ids")
        batch |= {name: batch[name].reshape(B // C, C, S) for name in read}
        batch["example_ids"] = batch["example_ids"] * np.arange(1, C + 1, dtype=np.int32)[:, None]
        batch["cls_positions"] = np.tile(S * np.arange(C, dtype=np.int32), (B // C, 1))
        right = draw.integers(0, C, (B // C, 1), np.int32)
        return batch | {"choices": right, "choice_weights": np.ones((B // C, 1), np.float32)}
    values: np.ndarray = draw.normal(size=(B, 1, labels)).astype(np.float32)
    if task == "single_label_classification":
        values = draw.integers(0, labels, (B, 1), np.int32)
    elif task == "multi_label_classification":
        values = (values > 0).astype(np.float32)
    return batch | {"labels": values, "label_weights": np.ones((B, 1), np.float32)}
