"""Reads a folder written by transformers or our export: configuration, weights, tokenizer."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.config.schema import ModelConfig
from bert_jax.convert import checksums
from bert_jax.convert.folders.file_names import FILES
from bert_jax.convert.hf_config import LENGTH, from_config_json, pad_token_id
from bert_jax.convert.model_files import (
    CONFIG,
    DISCRIMINATOR,
    GENERATOR,
    check_links,
    check_one,
    read_json,
)
from bert_jax.convert.sentence_encoder import (
    MODULES,
    SentenceEncoder,
    read_parts,
    read_sentence_encoder,
)
from bert_jax.convert.stored_tokenizer import check_frame, model_max_length, read_tokenizer
from bert_jax.convert.weight_files import read_weights
from bert_jax.data_pipeline.folders.check import check_files
from bert_jax.data_pipeline.store.manifest import MANIFEST
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, hub_hint
from bert_jax.storage.regular_file import check_not_special


@dataclass(frozen=True)
class StoredModel:
    """A model as it is stored; `tensors` have transformers' names and their stored dtypes."""

    config: ModelConfig
    tensors: Mapping[str, Any]  # arrays, or what `np.asarray` reads
    tokenizer: Tokenizer
    pad_token_id: Any  # of config.json; checked where positions depend on it
    values: Mapping[str, Any] = field(default_factory=dict)  # of a config.json of transformers
    sentence: SentenceEncoder | None = None  # of a folder of sentence-transformers
    left_out: tuple[str, ...] = ()  # what was not read, a text each

    @property
    def trained_length(self) -> int | None:
        """Tokens of the longest sequences in training, as an export says; None if unknown."""
        found = self.values.get(LENGTH)
        return found if type(found) is int and found > 0 else None


def read_folder(path: Path) -> StoredModel:
    """Reads config.json, the weights, the tokenizer's files and what makes vectors of texts.

    Raises:
        UserError: a file is missing, damaged, a link to a file outside, or differs from SHA256SUMS;
            the folder has a file or a key whose meaning would be lost; it is of another kind of
            model, or its tokenizer has more entries than the model, or frames a text otherwise.
    """
    if not path.is_dir():
        check_not_special(path)
        if path.is_file():
            by_import = f"import it first: bert-jax convert import --from={path} --out=…"
            by_folder = f"give the folder of a model, such as {path.parent}"
            raise UserError(f"{path}: a file; {by_import if path.suffix == '.zip' else by_folder}")
        raise UserError(
            f"{path}: no such folder; give one that `bert-jax convert export` wrote"
            f"{hub_hint(str(path))}"
        )
    if (path / "checkpoints").is_dir():
        raise UserError(
            f"{path}: the folder of a run; export it first: "
            f"bert-jax convert export --workdir={path} --out=…{_then_give(path)}"
        )
    if (path / MANIFEST).is_file() and (path / "held_out").is_dir():
        raise UserError(
            f"{path}: a token store, which has no model; train one: "
            f"bert-jax pretrain --config.data.store={path} --workdir=…"
        )
    if not (path / MODULES).exists():
        check_one(path)
    check_links(path)
    sums = checksums.read_checksums(path)
    parts = read_parts(path, sums)
    check_files(path, FILES, {part.folder for part in parts})
    place = parts[0].folder if parts else ""
    folder, sums_there = path / place, checksums.below(sums, place)
    if place:  # as sentence-transformers before 2 writes it
        check_links(folder, path)
        check_files(folder, FILES)
    values = read_json(folder / CONFIG, sums_there)
    config = from_config_json(values, str(folder / CONFIG))
    tensors = read_weights(folder, sums_there)
    tokenizer = read_tokenizer(folder, sums_there, has_types=config.type_vocab_size > 1)
    check_frame(folder, tokenizer, sums_there)
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} entries, config.json has "
            f"{config.vocab_size:,}; use the tokenizer that belongs to this model"
        )
    length = model_max_length(folder, sums_there) if parts else None
    sentence = read_sentence_encoder(path, parts, config.hidden_size, length, sums)
    return StoredModel(config, tensors, tokenizer, pad_token_id(values), values, sentence)


def _then_give(run: Path) -> str:
    """Returns which model of its export a run of two networks is answered with; "" of others."""
    with contextlib.suppress(UserError, KeyError, TypeError):
        if read_json(run / CONFIG, None)["config"]["data"]["replaced_tokens"]:
            return (
                f"; then give its {GENERATOR} where masked tokens are predicted, else its "
                f"{DISCRIMINATOR}"
            )
    return ""
