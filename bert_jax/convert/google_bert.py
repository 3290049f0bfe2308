"""Reads a model of google-research/bert or google-research/albert: a file of settings, a vocabulary
and a TensorFlow checkpoint.

BERT's names are those of modeling.py and run_pretraining.py (commit eedf571), as in
`transformers.models.bert.convert_bert_original_tf_checkpoint_to_pytorch`. Kernels are [in, out];
the two output matrices of run_pretraining.py are [out, in].
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.convert.folders.file_names import GOOGLE_FILES
from bert_jax.convert.folders.model_keys import ALBERT_KEYS, GOOGLE_KEYS
from bert_jax.convert.google_files import ALBERT_CONFIG, BERT_CONFIG
from bert_jax.convert.hf_config import from_config_json
from bert_jax.convert.model_files import check_links, read_json
from bert_jax.convert.reader import StoredModel
from bert_jax.convert.stored_tokenizer import say_casing
from bert_jax.convert.tensorflow.checkpoint import Entry, LazyTensor, TensorFlowCheckpoint
from bert_jax.data_pipeline.folders.check import check_files
from bert_jax.data_pipeline.folders.table import Entry as Key
from bert_jax.data_pipeline.settings import shown_name
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count, first_few
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.regular_file import TOKENIZER
from bert_jax.storage.remote import storage_errors

_MOST_STEPS = 2**31 - 1  # of a run
_MOMENTS, _STEP = ("adam_m", "adam_v"), "global_step"
_OBJECTS = ("_CHECKPOINTABLE_OBJECT_GRAPH", "_TRACKABLE_OBJECT_GRAPH")  # of TensorFlow 2
_MOST_NAMES = 4  # in a message
_SHARED = (  # parts of their names and of transformers', in order
    ("/", "."),
    ("_embeddings", "_embeddings.weight"),
    (".kernel", ".weight"),
    (".gamma", ".weight"),
    (".beta", ".bias"),
    ("predictions.output_bias", "predictions.bias"),
    ("seq_relationship.output_weights", "seq_relationship.weight"),
    ("seq_relationship.output_bias", "seq_relationship.bias"),
)
_BERT_NAMES = (*_SHARED, ("layer_", "layer."))
_ALBERT_NAMES = (
    *_SHARED,
    ("bert.", "albert."),
    ("encoder.transformer.group_", "encoder.albert_layer_groups."),
    (".inner_group_", ".albert_layers."),
    (".attention_1.self.", ".attention."),
    (".attention_1.output.", ".attention."),
    (".ffn_1.intermediate.output.dense.", ".ffn_output."),
    (".ffn_1.intermediate.dense.", ".ffn."),
    (".0.LayerNorm_1.", ".0.full_layer_layer_norm."),
    (".0.LayerNorm.", ".0.attention.LayerNorm."),
    ("pooler.dense.", "pooler."),
    ("cls.predictions.transform.", "predictions."),
    ("cls.predictions.", "predictions."),
    ("cls.seq_relationship.", "sop_classifier.classifier."),
)


class _Release(NamedTuple):
    """A repository with models in this form."""

    config: str  # its file of settings
    model_type: str
    keys: Sequence[Key]
    names: tuple[tuple[str, str], ...]
    read_tokenizer: Callable[[Path], Tokenizer]
    acts: Mapping[str, str]  # what it calls an activation -> transformers' name


def _read_wordpiece(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder / "vocab.txt")
    say_casing(folder / "vocab.txt", tokenizer)
    return tokenizer


def _read_sentencepiece(folder: Path) -> Tokenizer:
    from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert_albert

    file = _only(folder, "*.model", "SentencePiece vocabulary")
    with storage_errors(file, "cannot read the vocabulary"):
        tokenizer = Tokenizer(
            convert_albert(read_bytes(file, TOKENIZER), str(file)), name=str(file)
        )
    say_casing(file, tokenizer)
    return tokenizer


_BERT = _Release(BERT_CONFIG, "bert", GOOGLE_KEYS, _BERT_NAMES, _read_wordpiece, {})
# Its "gelu" is the form with tanh (modeling.py:354-366 of google-research/albert), not BERT's.
_ALBERT = _Release(
    ALBERT_CONFIG, "albert", ALBERT_KEYS, _ALBERT_NAMES, _read_sentencepiece,
    {"gelu": "gelu_new"},
)  # fmt: skip


@dataclass(frozen=True)
class StoredAdam:
    """State of the AdamWeightDecayOptimizer of google-research/bert: moments and step.

    Attributes:
        moments: first and second; their tensors have transformers' names, as in `StoredModel`.
        step: updates done.
    """

    moments: tuple[Mapping[str, Any], Mapping[str, Any]]
    step: int


def _release(folder: Path) -> _Release | None:
    return next((one for one in (_BERT, _ALBERT) if (folder / one.config).is_file()), None)


def read_google_bert(folder: Path) -> StoredModel:
    """Reads a folder with a released model, or one that run_pretraining.py wrote.

    Raises:
        UserError: a file is missing, damaged or a link to a file outside, or there is not exactly
            one checkpoint.
    """
    check_links(folder)
    check_files(folder, GOOGLE_FILES)
    release = _release(folder) or _BERT
    file = folder / release.config
    values = {**read_json(file), "model_type": release.model_type}
    if isinstance(act := values.get("hidden_act"), str):
        values["hidden_act"] = release.acts.get(act, act)
    config = from_config_json(values, str(file), release.keys)
    checkpoint = TensorFlowCheckpoint(_prefix(folder))
    state = optimizer_entries(checkpoint.entries)
    tensors = {
        _their_name(name, release): _lazy(checkpoint, name)
        for name in checkpoint.entries
        if name not in state
    }
    tokenizer = release.read_tokenizer(folder)
    left_out = _other_slots(state)
    return StoredModel(config, tensors, tokenizer, tokenizer.special.pad, left_out=left_out)


def read_adam(folder: Path) -> StoredAdam:
    """Reads the optimizer's state in a folder that run_pretraining.py wrote.

    Raises:
        UserError: the checkpoint lacks a moment or the step, as released ones do, or has a moment
            of another shape than its tensor; or as `read_google_bert`.
    """
    if _release(folder) is not _BERT:
        raise UserError(
            f"{folder}: the moments of google-research/albert are LAMB's, which are not read; "
            "import it without --optimizer_state"
        )
    checkpoint = TensorFlowCheckpoint(_prefix(folder))
    entries = checkpoint.entries
    state = optimizer_entries(entries)
    names = [name for name in entries if name not in state]
    for name in (_STEP, *(f"{name}/{moment}" for name in names for moment in _MOMENTS)):
        if name not in entries:
            others = _other_slots(state)
            reason = (
                f"it has {others[0]}, of another optimizer than google-research/bert's"
                if others
                else "released checkpoints have no moments"
            )
            raise UserError(
                f"{folder}: the checkpoint has no {shown_name(name)}; {reason}: import it without "
                "--optimizer_state"
            )
        if name != _STEP and entries[name].shape != entries[name.rpartition("/")[0]].shape:
            raise UserError(f"{folder}: the shape of {shown_name(name)} is not its tensor's")
    step = checkpoint.read(_STEP)
    if step.shape or not 0 <= step < _MOST_STEPS:
        raise UserError(f"{folder}: {_STEP} is {step.tolist()}, not a step number")
    mu, nu = (
        {_their_name(n, _BERT): _lazy(checkpoint, n, f"/{moment}") for n in names}
        for moment in _MOMENTS
    )
    return StoredAdam((mu, nu), int(step))


def optimizer_entries(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the tensors of a checkpoint that are no weights, with the names of their kinds.

    An optimizer has slots for a weight, whose names hold its name: WEIGHT/adam_m, WEIGHT/Adam_1 or
    SCOPE/WEIGHT/LAMB. Its other variables are numbers, as no weight of BERT is: beta1_power,
    loss_scale, global_step.

    Raises:
        UserError: it is a checkpoint of objects (TensorFlow 2), whose names are others.
    """
    if (graph := next((name for name in entries if name in _OBJECTS), None)) is not None:
        raise UserError(
            f"{graph} in the checkpoint: it is an object-based checkpoint of TensorFlow 2; convert "
            "it to a name-based one with the variable names of google-research/bert"
        )
    kinds = {}
    for name, entry in entries.items():
        parts = name.split("/")
        inner = (
            (start, end)
            for start in range(len(parts))
            for end in range(len(parts), start, -1)
            if end - start < len(parts) and "/".join(parts[start:end]) in entries
        )
        if found := next(inner, None):
            kinds[name] = "/".join((*parts[: found[0]], *parts[found[1] :]))
        elif not entry.shape:
            kinds[name] = name
    return kinds


def _other_slots(state: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what an import never reads of an optimizer, in words."""
    others = Counter(kind for kind in state.values() if kind not in (*_MOMENTS, _STEP))
    if not others:
        return ()
    names = ", ".join(first_few([shown_name(kind) for kind in others], _MOST_NAMES))
    return (f"{count(others.total(), 'tensor')} of an optimizer ({names})",)


def _lazy(checkpoint: TensorFlowCheckpoint, name: str, moment: str = "") -> LazyTensor:
    return LazyTensor(checkpoint, f"{name}{moment}", transposed=name.endswith("/kernel"))


def _their_name(name: str, release: _Release) -> str:
    """Returns the name of a tensor in transformers."""
    for own, theirs in release.names:
        name = name.replace(own, theirs)
    return name


def _prefix(folder: Path) -> Path:
    """Returns the path of the folder's checkpoint without its suffix."""
    return _only(folder, "*.index", "TensorFlow checkpoint").with_suffix("")


def _only(folder: Path, pattern: str, what: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folder}: needs one {what} ({pattern}), has {names}; leave one there")
    return found[0]
