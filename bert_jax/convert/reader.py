"""Reads a folder written by transformers or our export: configuration, weights, tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.config.schema import ModelConfig
from bert_jax.convert import checksums
from bert_jax.convert.files import check_links, read_json
from bert_jax.convert.hf_config import from_config_json, pad_token_id
from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.convert.weight_files import read_weights
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class StoredModel:
    """A model as it is stored; `tensors` have transformers' names and their stored dtypes."""

    config: ModelConfig
    tensors: Mapping[str, Any]  # arrays, or what `np.asarray` reads
    tokenizer: Tokenizer
    pad_token_id: Any  # of config.json; checked where positions depend on it
    values: Mapping[str, Any] = field(default_factory=dict)  # of a config.json of transformers


def read_folder(path: Path) -> StoredModel:
    """Reads config.json, the weights and the tokenizer's files; UserError if one is missing,
    damaged, a link to a file outside, or differs from SHA256SUMS, for another kind of model, or a
    tokenizer with more entries than the model."""
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give one that `bert-jax convert export` wrote")
    file = path / "config.json"
    if (path / "checkpoints").is_dir():
        raise UserError(
            f"{path}: the folder of a pretraining run; export it first: "
            f"bert-jax convert export --workdir={path} --out=…"
        )
    check_links(path)
    sums = checksums.read(path)
    values = read_json(file, sums)
    config = from_config_json(values, str(file))
    tensors = read_weights(path, sums)
    tokenizer = read_tokenizer(path, sums)
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{path}: the tokenizer has {tokenizer.vocab_size:,} entries, config.json has "
            f"{config.vocab_size:,}; use the tokenizer that belongs to this model"
        )
    return StoredModel(config, tensors, tokenizer, pad_token_id(values), values)
