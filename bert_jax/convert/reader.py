"""Reads a folder written by transformers or our export: configuration, weights, tokenizer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.flax

from bert_jax.config.schema import ModelConfig
from bert_jax.convert import checksums
from bert_jax.convert.hf_config import from_config_json, pad_token_id
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

Sums = Mapping[str, str] | None  # of an exported folder


@dataclass(frozen=True)
class Folder:
    """Contents of a folder; `tensors` have transformers' names and their stored dtypes."""

    config: ModelConfig
    tensors: dict[str, np.ndarray]
    tokenizer: Tokenizer
    pad_token_id: Any  # of config.json; checked where positions depend on it


def read_folder(path: Path) -> Folder:
    """Reads config.json, model.safetensors and tokenizer.json or vocab.txt; UserError if one is
    missing, damaged or differs from SHA256SUMS, for another kind of model, or a tokenizer with more
    entries than the model."""
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give one that `bert-jax convert export` wrote")
    file = path / "config.json"
    if (path / "checkpoints").is_dir():
        raise UserError(
            f"{path}: the folder of a pretraining run; export it first: "
            f"bert-jax convert export --workdir={path} --out=…"
        )
    sums = checksums.read(path)
    values = _read_json(file, sums)
    config = from_config_json(values, str(file))
    tensors = _read_weights(path / "model.safetensors", sums)
    tokenizer = _read_tokenizer(path, sums)
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{path}: the tokenizer has {tokenizer.vocab_size:,} entries, config.json has "
            f"{config.vocab_size:,}; use the tokenizer that belongs to this model"
        )
    return Folder(config, tensors, tokenizer, pad_token_id(values))


def _read_json(file: Path, sums: Sums) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file}: missing; give a folder with an exported model") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    except RecursionError:
        raise UserError(f"{file}: nested too deeply; export the model again") from None
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error}); export the model again") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: not a JSON object; export the model again")
    checksums.check(file.parent, file.name, sums)
    return value


def _read_weights(file: Path, sums: Sums) -> dict[str, np.ndarray]:
    if not file.exists():
        hint, save = "give a folder with an exported model", "load it with transformers and "
        save += 'save_pretrained(folder, max_shard_size="100GB")'
        others = ("pytorch_model.bin", "model.safetensors.index.json")
        if existing := [name for name in others if (file.parent / name).exists()]:
            hint = f"only {existing[0]} exists: {save}"
        raise UserError(f"{file}: missing; {hint}")
    checksums.check(file.parent, file.name, sums)
    try:
        # Loaded with the Flax reader: plain NumPy has no bfloat16.
        return {k: np.asarray(v) for k, v in safetensors.flax.load_file(file).items()}
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{file}: cannot be read ({error}); export the model again") from None


def _read_tokenizer(folder: Path, sums: Sums) -> Tokenizer:
    if (folder / "tokenizer.json").exists():
        checksums.check(folder, "tokenizer.json", sums)
        return Tokenizer.load(folder / "tokenizer.json")
    if not (folder / "vocab.txt").exists():
        raise UserError(f"{folder}: neither tokenizer.json nor vocab.txt; copy one of them there")
    checksums.check(folder, "vocab.txt", sums)
    settings = folder / "tokenizer_config.json"
    lowercase = _read_json(settings, sums).get("do_lower_case") if settings.exists() else None
    if not isinstance(lowercase, bool | None):
        raise UserError(f"{settings}: do_lower_case={shown(lowercase)} should be true or false")
    return Tokenizer.load(folder / "vocab.txt", lowercase=lowercase)
