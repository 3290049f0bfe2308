"""Reads and writes what sentence-transformers has beside an encoder: how a text becomes a vector.

modules.json names the parts: the encoder, a pool over its tokens, and layers on the pool's vector.
All releases read the form that is written here, that of 2.2 to 3.4; that of 6 is read, too.
"""

# Over 300 lines: the reader and the writer of a form stand together, so that they agree.

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.config.sentence_parts import (
    ACTIVATIONS,
    POOLS,
    Dense,
    Dropout,
    Normalize,
    Part,
    Pooling,
)
from bert_jax.convert.checksums import below
from bert_jax.convert.folders.sentence_keys import (
    DENSE_FILES,
    DENSE_KEYS,
    DROPOUT_KEYS,
    ENCODER_KEYS,
    MODULES_KEYS,
    NORMALIZE_KEYS,
    PART_FILES,
    POOLING_KEYS,
    SENTENCE_TRANSFORMERS_KEYS,
)
from bert_jax.convert.model_files import Sums, check_links, read_json, read_value
from bert_jax.convert.tokenizer_files import json_bytes, lowercases
from bert_jax.convert.weight_files import read_weights
from bert_jax.data_pipeline.folders.check import check_files, check_keys
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

MODULES: Final = "modules.json"
ABOUT: Final = "config_sentence_transformers.json"
ENCODER: Final = "sentence_bert_config.json"
CONFIG: Final = "config.json"
LIBRARY: Final = "sentence_transformers."
# Packages of its parts: up to 5, where a class has a module of its own name, and since 6.
_OLD_PACKAGE: Final = f"{LIBRARY}models"
_PACKAGES: Final = (f"{LIBRARY}base.modules", f"{LIBRARY}sentence_transformer.modules")
# The names of the encoder's class: of 0.2, of all since.
_ENCODERS: Final = {
    "Transformer", "BERT", "RoBERTa", "DistilBERT", "CamemBERT", "XLMRoBERTa",
}  # fmt: skip
# By pool: its key in the form of 2.2 to 3.4, in which the pools are joined in this order.
POOL_KEYS: Final = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
FIRST_POOL_KEYS: Final = tuple(POOL_KEYS.values())[:4]  # of every release


class FolderPart(NamedTuple):
    """An entry of modules.json: the name of a class, and a folder in that of the model, "" for
    that itself."""

    kind: str
    folder: str


@dataclass(frozen=True)
class SentenceEncoder:
    """Modules that turn the token states of a text into one vector.

    Attributes:
        parts: a pool and the layers after it.
        weights: of each part, by their names in sentence-transformers; float32.
        max_length: of a text in tokens, [CLS] and [SEP] included; None for the encoder's longest.
        lowercase: whether text is lower-cased before the tokenizer, whatever that does.
        prompts: text to put before a text, by name.
        default_prompt: the name of that for texts for which no other is asked.
        dimensions: first numbers of a vector that are kept; None for all.
        similarity: the name of the function for pairs of vectors, if the folder names one.
    """

    parts: tuple[Part, ...]
    weights: tuple[Mapping[str, np.ndarray], ...]
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_prompt: str | None = None
    dimensions: int | None = None
    similarity: str | None = None

    @property
    def prompt(self) -> str:
        """The text before every text for which no other is asked."""
        return self.prompts[self.default_prompt] if self.default_prompt is not None else ""

    def check_prompt(self, prompt: str) -> None:
        """Raises UserError for a prompt whose tokens are not pooled if [CLS] is, which is one."""
        pooling = self.parts[0]
        assert isinstance(pooling, Pooling)
        if prompt and not pooling.include_prompt and "cls" in pooling.pools:
            raise UserError(
                "include_prompt=False with cls pooling is not supported: releases of "
                "sentence-transformers disagree on its meaning"
            )

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        *_, width = (part.width for part in self.parts if isinstance(part, Pooling | Dense))
        return min(width, self.dimensions or width)

    @property
    def titles(self) -> str:
        """The parts in words, in their order."""
        return ", ".join(part.title for part in self.parts)


def read_parts(folder: Path, sums: Sums) -> list[FolderPart]:
    """Returns the entries of modules.json, the encoder first; none if there is no such file.

    Raises:
        UserError: it is damaged, does not begin with an encoder, or names a folder outside.
    """
    file = folder / MODULES
    if not file.exists() and MODULES not in (sums or ()):
        return []
    values = read_value(file, sums)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise UserError(f"{file}: not a list of modules; save the model again")
    parts = []
    for value in values:
        check_keys(value, MODULES_KEYS, file)
        kind, where = value.get("type"), value.get("path")
        if not isinstance(kind, str) or not isinstance(where, str):
            raise UserError(f"{file}: {shown(value)} has no type and path; save the model again")
        if Path(where).name != where or where == "..":
            raise UserError(f"{file}: path={shown(where)} is not a folder beside it")
        if not kind.startswith(LIBRARY):
            raise UserError(
                f"{file}: type={shown(kind)} needs code of its own, which bert-jax never runs"
            )
        if not _is_of_a_release(kind):
            raise UserError(f"{file}: type={shown(kind)} is in no release of sentence-transformers")
        parts.append(FolderPart(kind.rpartition(".")[2], where))
    if not parts or parts[0].kind not in _ENCODERS:
        first = parts[0].kind if parts else "nothing"
        raise UserError(f"{file}: the first module is {first}; bert-jax needs a Transformer there")
    return parts


def encoder_folder(folder: Path, sums: Sums) -> tuple[Path, Sums]:
    """Returns the folder of the encoder, which sentence-transformers before 2 writes below that of
    the model, with its checksums; UserError as `read_parts`."""
    parts = read_parts(folder, sums)
    place = parts[0].folder if parts else ""
    if place:
        check_links(folder / place, folder)
    return folder / place, below(sums, place)


def _is_of_a_release(kind: str) -> bool:
    """Returns whether a class is in a package in which some release has the classes of parts."""
    module, _, name = kind.rpartition(".")
    package, _, last = module.rpartition(".")
    own_module = package in _PACKAGES and last.replace("_", "") == name.lower()
    return module in (_OLD_PACKAGE, *_PACKAGES) or own_module


def read_sentence_encoder(
    folder: Path, parts: Sequence[FolderPart], width: int, length: Any, sums: Sums
) -> SentenceEncoder | None:
    """Reads the parts after the encoder; None without modules.json.

    Args:
        parts: as `read_parts`.
        width: of the encoder's states.
        length: `model_max_length` of the tokenizer, which holds where no other length is given.

    Raises:
        UserError: a file is missing or damaged, or a part cannot be applied.
    """
    if not parts:
        return None
    where = folder / MODULES
    if len(parts) < 2 or parts[1].kind != "Pooling":
        second = parts[1].kind if len(parts) > 1 else "nothing"
        raise UserError(f"{where}: the second module is {second}; bert-jax needs a Pooling there")
    read: list[tuple[Part, Mapping[str, np.ndarray]]] = []
    for part in parts[1:]:
        reader = _READERS.get(part.kind)
        if reader is None or (part.kind == "Pooling" and read):
            known = ", ".join(_READERS)
            raise UserError(f"{where}: module {part.kind} is not supported there; valid: {known}")
        if (folder / part.folder).is_dir():
            check_links(folder / part.folder, folder)
            check_files(folder / part.folder, DENSE_FILES if part.kind == "Dense" else PART_FILES)
        read.append(reader(folder / part.folder, width, below(sums, part.folder)))
        if isinstance(read[-1][0], Pooling | Dense):
            width = read[-1][0].width
    model = folder / parts[0].folder
    limit, lowercase = _read_encoder(model, length, below(sums, parts[0].folder))
    made, weights = zip(*read, strict=True)
    encoder = SentenceEncoder(made, weights, limit, lowercase, **_read_about(folder, sums))
    try:
        encoder.check_prompt(encoder.prompt)
    except UserError as error:
        raise UserError(f"{folder / parts[1].folder}: {error}") from None
    return encoder


def lowercased(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that lower-cases text before all else, as sentence-transformers does."""
    if lowercases(tokenizer):
        return tokenizer
    spec = json.loads(tokenizer.json)
    before = [spec["normalizer"]] if spec["normalizer"] else []
    spec["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *before]}
    return Tokenizer(json_bytes(spec), split_special_tokens=tokenizer.split_special_tokens)


def _config(folder: Path, entries: Any, sums: Sums) -> dict[str, Any]:
    values = read_json(folder / CONFIG, sums)
    check_keys(values, entries, folder / CONFIG)
    return values


def _flag(values: Mapping[str, Any], name: str, where: Path, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise UserError(f"{where}: {name}={shown(value)} should be true or false")
    return value


def _read_pooling(folder: Path, width: int, sums: Sums) -> tuple[Part, Mapping[str, np.ndarray]]:
    values, where = _config(folder, POOLING_KEYS, sums), folder / CONFIG
    for name in ("word_embedding_dimension", "embedding_dimension"):
        if values.get(name, width) != width:
            raise UserError(f"{where}: {name}={shown(values[name])}, but the encoder has {width}")
    given = values.get("pooling_mode")
    if given is None:
        pools = _old_pools(values, where)
    else:
        pools = [given] if isinstance(given, str) else given
        if not isinstance(pools, list) or not pools or not all(pool in POOLS for pool in pools):
            known = ", ".join(POOLS)
            raise UserError(f"{where}: pooling_mode={shown(given)}; bert-jax computes {known}")
    prompt = _flag(values, "include_prompt", where, True)
    return Pooling(tuple(pools), prompt, width), {}


def _old_pools(values: Mapping[str, Any], where: Path) -> list[str]:
    """Returns the pools from keys that are true or false: of several, in the order of the table."""
    on = [pool for pool, key in POOL_KEYS.items() if _flag(values, key, where, False)]
    mean = POOL_KEYS["mean"]
    if on and mean not in values:  # releases up to 3 take the mean then, too, later ones do not
        raise UserError(f"{where}: {mean} is missing; write true or false for it")
    return on or ["mean"]


def _read_dense(folder: Path, width: int, sums: Sums) -> tuple[Part, Mapping[str, np.ndarray]]:
    values, where = _config(folder, DENSE_KEYS, sums), folder / CONFIG
    sizes: list[Any] = [values.get(name) for name in ("in_features", "out_features")]
    said = f"in_features={shown(sizes[0])}, out_features={shown(sizes[1])}"
    if any(type(size) is not int or size < 1 for size in sizes):
        raise UserError(f"{where}: {said} should be whole numbers above 0; save the model again")
    if sizes[0] != width:
        raise UserError(
            f"{where}: {said}, but the input has {width} dimensions; save the model again"
        )
    activation = values.get("activation_function", f"{ACTIVATIONS['Tanh']}.Tanh")
    name = activation.rpartition(".")[2] if isinstance(activation, str) else ""
    modules = ("torch.nn", ACTIVATIONS.get(name))
    if activation not in [f"{module}.{name}" for module in modules] or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(
            f"{where}: activation_function={shown(activation)} is not supported; only "
            f"{known} of torch.nn are"
        )
    bias = _flag(values, "bias", where, True)
    residual = _flag(values, "use_residual", where, False)
    part = Dense(sizes[0], sizes[1], bias, name, residual)
    tensors = read_weights(folder, sums)
    shapes = part.shapes
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if found != shapes:
        wrong = sorted(found.items() ^ shapes.items())[0][0]
        has, wanted = (
            f"shape {[*some[wrong]]}" if wrong in some else "none" for some in (found, shapes)
        )
        raise UserError(
            f"{folder}: {wrong} has {has}, by {CONFIG} it should have {wanted}; save the model "
            "again"
        )
    weights = {key: np.asarray(tensor, np.float32) for key, tensor in tensors.items()}
    if not all(np.isfinite(tensor).all() for tensor in weights.values()):
        raise UserError(f"{folder}: weights that are NaN or infinite; save the model again")
    return part, weights


def _read_normalize(folder: Path, width: int, sums: Sums) -> tuple[Part, Mapping[str, np.ndarray]]:
    if (folder / CONFIG).exists():  # releases before 6 write none, and Git keeps no empty folder
        _config(folder, NORMALIZE_KEYS, sums)
    return Normalize(), {}


def _read_dropout(folder: Path, width: int, sums: Sums) -> tuple[Part, Mapping[str, np.ndarray]]:
    rate = _config(folder, DROPOUT_KEYS, sums).get("dropout")
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate <= 1:
        raise UserError(f"{folder / CONFIG}: dropout={shown(rate)} should be a rate")
    return Dropout(rate), {}


_READERS: Final = {
    "Pooling": _read_pooling,
    "Dense": _read_dense,
    "Normalize": _read_normalize,
    "Dropout": _read_dropout,
}


def _read_encoder(folder: Path, length: Any, sums: Sums) -> tuple[int | None, bool]:
    """Returns the longest text in tokens, if a file says it, and whether it is lower-cased."""
    found = sorted(folder.glob("sentence_*_config.json"))
    file = folder / ENCODER if folder / ENCODER in found or not found else found[0]
    values = read_json(file, sums) if found else {}
    check_keys(values, ENCODER_KEYS, file)
    limit = values.get("max_seq_length")
    if limit is None and isinstance(length, int | float):  # 10^30 stands for no limit
        limit = int(length) if length < 2**31 else None
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 3):
        raise UserError(f"{file}: max_seq_length={shown(limit)} should be 3 tokens or more")
    lowercase = values.get("do_lower_case")
    return limit, _flag({"do_lower_case": lowercase or False}, "do_lower_case", file, False)


def _read_about(folder: Path, sums: Sums) -> dict[str, Any]:
    """Returns the fields of a `SentenceEncoder` that are in the file about the entire model."""
    file = folder / ABOUT
    if not file.exists() and ABOUT not in (sums or ()):
        return {}
    values = read_json(file, sums)
    check_keys(values, SENTENCE_TRANSFORMERS_KEYS, file)
    prompts, name = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise UserError(f"{file}: prompts={shown(prompts)} should be texts by name")
    if name is not None and not (isinstance(name, str) and name in prompts):
        raise UserError(f"{file}: default_prompt_name={shown(name)} is not one of the prompts")
    kept, similarity = values.get("truncate_dim"), values.get("similarity_fn_name")
    if kept is not None and (not isinstance(kept, int) or isinstance(kept, bool) or kept < 1):
        raise UserError(f"{file}: truncate_dim={shown(kept)} should be 1 or more")
    if not isinstance(similarity, str | None):
        raise UserError(f"{file}: similarity_fn_name={shown(similarity)} should be a name")
    return {
        "prompts": prompts, "default_prompt": name, "dimensions": kept, "similarity": similarity,
    }  # fmt: skip
