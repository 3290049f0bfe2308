"""Reads a model of google-research/bert: bert_config.json, vocab.txt and a TensorFlow checkpoint.

Its names are those of modeling.py and run_pretraining.py (commit eedf571), as in
`transformers.models.bert.convert_bert_original_tf_checkpoint_to_pytorch`. Kernels are [in, out];
the two output matrices of run_pretraining.py are [out, in].
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.convert.files import check_links, read_json
from bert_jax.convert.hf_config import from_config_json
from bert_jax.convert.reader import StoredModel
from bert_jax.convert.tensorflow.checkpoint import LazyTensor, TensorFlowCheckpoint
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.settings import shown_name
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"
FILES = re.compile(r"bert_config\.json|vocab\.txt|.+\.ckpt.*\.(index|data-\d{5}-of-\d{5})")
_MOST_STEPS = 2**31 - 1  # of a run
_MOMENTS, _STEP = ("adam_m", "adam_v"), "global_step"
_STATE = re.compile(rf".*/({'|'.join(_MOMENTS)})|{_STEP}")  # of the optimizer
_NAMES = (  # parts of its names and of transformers', in order
    ("/", "."),
    ("layer_", "layer."),
    ("_embeddings", "_embeddings.weight"),
    (".kernel", ".weight"),
    ("predictions.output_bias", "predictions.bias"),
    ("seq_relationship.output_weights", "seq_relationship.weight"),
    ("seq_relationship.output_bias", "seq_relationship.bias"),
)


@dataclass(frozen=True)
class StoredAdam:
    """What AdamWeightDecayOptimizer of google-research/bert needs to take the next update.

    Attributes:
        moments: first and second; their tensors have transformers' names, as in `StoredModel`.
        step: updates done.
    """

    moments: tuple[Mapping[str, Any], Mapping[str, Any]]
    step: int


def is_google_bert(folder: Path) -> bool:
    """Whether the folder holds a model of google-research/bert."""
    return (folder / CONFIG).is_file()


def read_google_bert(folder: Path) -> StoredModel:
    """Reads a folder with a released model, or one that run_pretraining.py wrote.

    Raises:
        UserError: a file is missing, damaged or a link to a file outside, or there is not exactly
            one checkpoint.
    """
    check_links(folder)
    values = {**read_json(folder / CONFIG), "model_type": "bert"}
    config = from_config_json(values, str(folder / CONFIG))
    checkpoint = TensorFlowCheckpoint(_prefix(folder))
    tensors = {_their_name(n): _lazy(checkpoint, n) for n in _trained(checkpoint)}
    tokenizer = Tokenizer.load(folder / VOCABULARY)
    return StoredModel(config, tensors, tokenizer, tokenizer.special.pad)


def read_adam(folder: Path) -> StoredAdam:
    """Reads the optimizer's state in a folder that run_pretraining.py wrote.

    Raises:
        UserError: the checkpoint lacks a moment or the step, as released ones do, or has a moment
            of another shape than its tensor; or as `read_google_bert`.
    """
    checkpoint = TensorFlowCheckpoint(_prefix(folder))
    entries, names = checkpoint.entries, _trained(checkpoint)
    for name in (_STEP, *(f"{name}/{moment}" for name in names for moment in _MOMENTS)):
        if name not in entries:
            raise UserError(
                f"{folder}: the checkpoint has no {shown_name(name)}; released checkpoints have no "
                "moments: import it without --optimizer_state"
            )
        if name != _STEP and entries[name].shape != entries[name.rpartition("/")[0]].shape:
            raise UserError(f"{folder}: {shown_name(name)} has another shape than its tensor")
    step = checkpoint.read(_STEP)
    if step.shape or not 0 <= step < _MOST_STEPS:
        raise UserError(f"{folder}: {_STEP} is {step.tolist()}, not the step of a run")
    mu, nu = (
        {_their_name(n): _lazy(checkpoint, n, f"/{moment}") for n in names} for moment in _MOMENTS
    )
    return StoredAdam((mu, nu), int(step))


def _trained(checkpoint: TensorFlowCheckpoint) -> list[str]:
    """Returns the names of the model's tensors in a checkpoint."""
    return [name for name in checkpoint.entries if not _STATE.fullmatch(name)]


def _lazy(checkpoint: TensorFlowCheckpoint, name: str, moment: str = "") -> LazyTensor:
    return LazyTensor(checkpoint, f"{name}{moment}", transposed=name.endswith("/kernel"))


def _their_name(name: str) -> str:
    """Returns the name of a tensor in transformers."""
    for own, theirs in _NAMES:
        name = name.replace(own, theirs)
    return name


def _prefix(folder: Path) -> Path:
    """Returns the path of the folder's checkpoint without its suffix."""
    found = sorted(folder.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(
            f"{folder}: needs one TensorFlow checkpoint (*.index), has {names}; leave one there"
        )
    return found[0].with_suffix("")
