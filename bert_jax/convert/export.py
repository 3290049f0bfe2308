"""Write a checkpoint as a folder that `transformers` and `bert_jax.load` read."""

import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from bert_jax.checkpoint import checkpoints as checkpoint
from bert_jax.config import DataConfig, ModelConfig
from bert_jax.config_values import flatten, from_dict
from bert_jax.convert import names
from bert_jax.convert.bert_config import to_config_json
from bert_jax.convert.card import Card, render
from bert_jax.convert.tokenizer_files import json_bytes, lowercases, tokenizer_files
from bert_jax.records import metrics
from data_pipeline.errors import UserError
from data_pipeline.manifest import read_manifest, split_digest
from data_pipeline.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
_FILES = {
    WEIGHTS, "config.json", "README.md",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
}  # fmt: skip
_PRODUCER = "bert-jax"


def export(
    params: Mapping[str, Any],
    model_config: ModelConfig,
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    card: Card,
) -> None:
    """Writes weights, configuration, tokenizer and model card into the folder `out`.

    The folder appears whole or not at all. One that an earlier export wrote is replaced.

    Args:
        params: our parameters, arrays of any kind. Without a pair head the folder is one for
            `BertForMaskedLM`; a span boundary head is left out, as transformers has none.
        card: its `objectives` are those of the parameters.
        tokenizer: of the store they were trained on.

    Raises:
        UserError: `out` holds something that is not an export, the tokenizer has another number of
            entries than the model, or a parameter is not finite.
    """
    out = _free(out)
    if tokenizer.vocab_size != model_config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} entries, the model "
            f"{model_config.vocab_size:,}; give the tokenizer that the model was trained with"
        )
    tensors = names.to_transformers(params, model_config)
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise UserError(f"{name} holds NaN or infinite numbers; export an earlier step")
    pairs = "pair" in params
    config = to_config_json(model_config, pad_token_id=tokenizer.special.pad, pairs=pairs)
    files = tokenizer_files(tokenizer, model_config.max_position_embeddings)
    text = render(
        card,
        model_config,
        parameters=sum(tensor.size for tensor in tensors.values()),
        lowercase=lowercases(tokenizer),
    )
    files |= {"config.json": json_bytes(config), "README.md": text.encode()}
    temporary = out.parent / f".{out.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        # transformers refuses files that do not say which library's layout they hold.
        about = {"format": "pt", "producer": f"{_PRODUCER} {version('bert-jax')}"}
        safetensors.numpy.save_file(tensors, temporary / WEIGHTS, metadata=about)
        (temporary / WEIGHTS).chmod((temporary / "config.json").stat().st_mode)  # not only ours
        _put(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def run_export(workdir: epath.PathLike, out: Path | str, step: int | None = None) -> None:
    """Exports a checkpoint of a pretraining run (the newest by default) and says what it wrote.

    Raises:
        UserError: no such checkpoint, or as `export`.
    """
    _free(out)  # before reading a large checkpoint for nothing
    params, meta = checkpoint.load_params(workdir, step)
    if "sbo" in params:
        print("the span boundary head is left out: transformers has none")
    model_config = from_dict(meta["config"]["model"], ModelConfig, "config.model")
    folder = epath.Path(workdir)
    tokenizer = _tokenizer(folder / "tokenizer.json", meta["data"]["tokenizer"])
    export(params, model_config, tokenizer, out, card=_card(folder, meta))
    print(f"step {meta['step']:,} of {workdir} exported to {out}")


def _tokenizer(file: epath.Path, digest: str) -> Tokenizer:
    """The tokenizer that the checkpoint was trained with, and no other."""
    again = f"copy the tokenizer.json with sha256 {digest[:12]}… there from the token store"
    if not file.exists():
        raise UserError(f"{file}: missing; {again}")
    tokenizer = Tokenizer(file.read_bytes(), name=str(file))
    if tokenizer.digest != digest:
        raise UserError(f"{file}: not the one the checkpoint was trained with; {again}")
    return tokenizer


def _card(workdir: epath.Path, meta: Mapping[str, Any]) -> Card:
    config = meta["config"]
    settings = flatten(dict(config))
    settings.pop("data.store")  # a path on the machine that trained
    sources, languages = _text(config["data"]["store"], meta["data"])
    measured = [r for r in metrics.read(workdir, "eval") if r["step"] <= meta["step"]]
    last = dict(measured[-1]) if measured else {}
    taken = last.get("step")
    figures = {k: v for k, v in last.items() if k not in ("kind", "step", "time")}
    return Card(
        step=meta["step"],
        objectives=from_dict(config["data"], DataConfig, "config.data").objectives,
        settings=settings,
        sources=sources,
        languages=languages,
        metrics=figures,
        metrics_step=taken,
    )


def _text(store: str, digests: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """What the store says about its text, if it is still the store that was trained on."""
    try:
        manifest = read_manifest(store)
    except UserError:
        return [], []
    if split_digest("train", manifest["files"]) != digests["train"]:
        return [], []
    return manifest["sources"], manifest["languages"]


def _free(out: Path | str) -> Path:
    """The folder to write, after making sure that nothing but an export would be replaced."""
    if "://" in str(out):
        raise UserError(f"{out}: exports are written to a local folder; copy it from there")
    out = Path(os.path.abspath(out))
    if not out.exists():
        return out
    held = {entry.name for entry in out.iterdir()} if out.is_dir() else {out.name}
    if out.is_dir() and (not held or (held <= _FILES and _ours(out / WEIGHTS))):
        return out
    raise UserError(f"{out}: exists and is not an export of bert-jax; give a new folder")


def _ours(weights: Path) -> bool:
    try:
        with safetensors.safe_open(weights, framework="numpy") as file:
            return (file.metadata() or {}).get("producer", "").startswith(_PRODUCER)
    except (OSError, safetensors.SafetensorError):
        return False


def _put(temporary: Path, out: Path) -> None:
    """Moves the finished folder into place; a folder cannot be replaced in one step."""
    if out.exists():
        old = out.parent / f".{out.name}.{os.getpid()}.old"
        out.rename(old)
        temporary.rename(out)
        shutil.rmtree(old)
    else:
        temporary.rename(out)
