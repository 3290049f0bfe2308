"""Exports a checkpoint as a folder that `transformers` and `bert_jax.load` read."""

# Over 300 lines: what writes an export, and what tells one from other folders, must agree.

import dataclasses
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import safetensors
from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.checkpoint import manager as checkpoint
from bert_jax.config.model_settings import generator_of
from bert_jax.config.optimizer_settings import Weights
from bert_jax.config.recorded import config_of, model_of
from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import TaskModelConfig, without_head
from bert_jax.convert import checksums
from bert_jax.convert import weights as names
from bert_jax.convert.checksums import SUMS
from bert_jax.convert.exportable import no_class
from bert_jax.convert.hf_config import ORIGIN, to_config_json
from bert_jax.convert.layouts.known_layouts import find_layout
from bert_jax.convert.model_files import DISCRIMINATOR
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.convert.sentence_encoder import ABOUT, ENCODER, MODULES, SentenceEncoder
from bert_jax.convert.sources import read_run_tokenizer
from bert_jax.convert.tokenizer_files import json_bytes, lowercases, tokenizer_files
from bert_jax.convert.weight_files import HEADS
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import StorageError, UserError
from bert_jax.model.vector_layers import is_layer
from bert_jax.objectives.disentangled_embeddings import GENERATOR
from bert_jax.objectives.known_objectives import all_heads, learned_by, with_heads
from bert_jax.objectives.replaced_token_model import generator_params
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS
from bert_jax.publish.card_facts import read_card
from bert_jax.publish.model_card import Card, render
from bert_jax.publish.sentence_files import sentence_files
from bert_jax.publish.weight_writer import (
    DEFAULT_FORMAT,
    WEIGHT_FILE,
    WeightFormat,
    as_dtype,
    is_export,
    write_files,
    write_optimizer,
    write_weights,
)
from bert_jax.storage import atomic
from bert_jax.storage.digest import file_digest
from bert_jax.storage.outputs import OutputKind, check_inputs, check_output, target_of
from bert_jax.storage.remote import is_remote
from bert_jax.training.optimizer_state import OptimizerState, of_checkpoint
from bert_jax.workdir.inputs import inputs_of_model
from bert_jax.workdir.layout import Workdir, split_step

CARD = "README.md"
_FILES = {  # besides the weights
    "config.json", CARD, HEADS,
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "bpe.codes", MODULES, ENCODER, ABOUT, SUMS,
}  # fmt: skip
_ONE = rf"(step-\d+|{DISCRIMINATOR}|{GENERATOR})"
_OF_SEVERAL = re.compile(rf"{_ONE}|\.{_ONE}\.\d+\.(tmp|old)")
_PART = re.compile(r"[1-9]\d?_(Pooling|Dense|Normalize|Dropout)")  # of a sentence encoder


def export(
    params: Mapping[str, Any],
    model_config: ModelConfig,
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    card: Card,
    form: WeightFormat = DEFAULT_FORMAT,
    rows_before: np.ndarray | None = None,
    source: Mapping[str, Any] = MappingProxyType({}),
    optimizer: OptimizerState | None = None,
    sentence: SentenceEncoder | None = None,
) -> None:
    """Writes weights, configuration, tokenizer and model card into the folder `out`.

    The folder appears complete or not at all. An earlier export is replaced, unless a file of it
    was edited since; symbolic links are followed.

    Args:
        params: our parameters, arrays of any kind. The class of transformers is the one with most
            of their heads; the others are in a file of their own.
        card: its `objectives` are those of the parameters. If it has no `length`, every position
            counts as trained.
        tokenizer: of the store they were trained on; that of an import may have fewer entries.
        rows_before, source: see `weights.to_transformers`, `to_config_json`.
        optimizer: its state goes into a file of its own, which transformers ignores.
        sentence: what makes vectors of texts, for sentence-transformers.

    Raises:
        UserError: as `check_output`; the vocabulary sizes do not fit, a parameter is not finite or
            too large for its dtype, or transformers has no such class.
        StorageError: the folder cannot be written; an older one is unchanged.
    """
    out = _checked(out, model_config, tokenizer, card)
    pad = tokenizer.special.pad
    layout, longest = find_layout(model_config), model_config.max_position_embeddings
    own, others = names.groups_by_file(params, layout)
    tensors = names.to_transformers(params, model_config, pad, own, rows_before=rows_before)
    heads = names.to_transformers(params, model_config, pad, others)
    tensors, heads = (as_dtype(some, form.dtype) for some in (tensors, heads))
    config = to_config_json(
        model_config, pad_token_id=pad, heads=params, trained_length=card.length,
        trained_form=card.form, source=source,
    ) | {"dtype": form.dtype}  # fmt: skip
    files = _files(config, model_config, tokenizer, card, tensors)
    tensors |= names.copies(tensors, model_config)
    lacks_pooler = layout.has_pooler and names.POOLER not in own
    more, parts = sentence_files(sentence, longest, form.dtype, lacks_pooler=lacks_pooler)
    files |= more
    temporary = _temporary_path(out, "tmp")
    try:
        _remove_leftovers(out)
        temporary.mkdir(parents=True)
        _write(temporary, files, tensors, heads, form.max_shard_size, optimizer, parts)
        _publish(temporary, out)
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise StorageError(f"{out}: cannot be written ({reason}); nothing was changed") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _checked(out: Path | str, model_config: ModelConfig, tokenizer: Tokenizer, card: Card) -> Path:
    """Returns the folder at the end of links; UserError if it may not be written, or if sizes do
    not fit: that of an import may have fewer entries than rows."""
    check_output(out, EXPORT)
    without_entry = model_config.vocab_size - tokenizer.vocab_size
    if without_entry < 0 or (without_entry and not card.origin):
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} entries, the model "
            f"{model_config.vocab_size:,}; give the tokenizer the model was trained with"
        )
    return target_of(out)


def _files(
    config: Mapping[str, Any],
    model_config: ModelConfig,
    tokenizer: Tokenizer,
    card: Card,
    tensors: Mapping[str, np.ndarray],
) -> dict[str, bytes]:
    """Returns the contents of all files but the weights, by name; config: that of config.json."""
    length = card.length or model_config.max_position_embeddings
    # Of a model with one, transformers would pass the second text of a pair another.
    token_types = find_layout(model_config).token_types and model_config.type_vocab_size > 1
    layers = card.sentence.weights if card.sentence else ()
    text = render(
        card,
        model_config,
        parameters=sum(x.size for some in (tensors, *layers) for x in some.values()),
        lowercase=lowercases(tokenizer),
        model_type=config["model_type"],
    )
    files = tokenizer_files(tokenizer, length, token_types=token_types)
    return files | {"config.json": json_bytes(config), CARD: text.encode()}


def _write(
    folder: Path,
    files: Mapping[str, bytes],
    tensors: Mapping[str, np.ndarray],
    heads: Mapping[str, np.ndarray],
    max_shard_size: str | None,
    optimizer: OptimizerState | None,
    parts: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    weights = write_weights(folder, tensors, max_shard_size)
    weights += write_files(folder, {**({HEADS: heads} if heads else {}), **parts})
    if optimizer:
        weights.append(write_optimizer(folder, optimizer))
    for name in weights:  # safetensors may create them readable by the owner only
        (folder / name).chmod((folder / "config.json").stat().st_mode)
    (folder / SUMS).write_text(checksums.render(folder, (*files, *weights)))


def run_export(
    workdir: epath.PathLike,
    out: Path | str,
    step: int | None = None,
    *,
    all_steps: bool = False,
    form: WeightFormat = DEFAULT_FORMAT,
    optimizer_state: bool = False,
    weights: Weights = "last",
    repository: str = "",
    revisions: Mapping[int, str] = MappingProxyType({}),
) -> list[int]:
    """Exports checkpoints of a run and prints the results; returns the steps with
    `all_steps`.

    A run with a generator has two models, in the folders `discriminator` and `generator` of `out`;
    a generator that transformers has no class for is left out.

    Args:
        step: of the checkpoint; None is the newest.
        all_steps: every checkpoint, each in a folder `step-STEP` in `out`.
        optimizer_state: the moments and the step too, for `config.init_optimizer`.
        weights: those of the step, or their average.
        repository: on the Hugging Face hub, by which the model card names the model.
        revisions: step -> the branch that the model card names; the main branch for other steps.

    Raises:
        UserError: there is no such checkpoint, or as `export`.
    """
    run = Workdir.open(workdir)
    check_inputs(out, EXPORT, inputs_of_model(workdir))  # before anything of the run is read
    check_output(out, EXPORTS if all_steps or has_generator(run) else EXPORT)
    options = _Options(form, optimizer_state, weights, repository, revisions)
    if not all_steps:
        _export_step(run, out, step, options)
        return []
    steps = catalog.complete_steps(run.checkpoints)
    if not steps:
        raise UserError(f"{workdir}: has no checkpoint; train first")
    for step in steps:
        _export_step(run, Path(out) / f"step-{step}", step, options)
    return steps


class _Options(NamedTuple):
    """The arguments of `run_export` that hold for each checkpoint."""

    form: WeightFormat
    optimizer_state: bool
    weights: Weights
    repository: str
    revisions: Mapping[int, str]


class _Checkpoint(NamedTuple):
    """A checkpoint that is exported."""

    run: Workdir
    meta: Mapping[str, Any]
    options: _Options


def _export_step(run: Workdir, out: Path | str, step: int | None, options: _Options) -> None:
    pair = has_generator(run)
    check_output(out, EXPORTS if pair else EXPORT)  # fail before reading a large checkpoint
    params, meta = checkpoint.load_params(run, step, options.weights)
    if options.optimizer_state and pair:
        raise UserError(
            f"{run}: the moments are those of two networks, which an export has apart; leave out "
            "--optimizer_state, and continue from the run itself"
        )
    card = read_card(run, meta, options.weights)
    branch = options.revisions.get(meta["step"], "")
    card = dataclasses.replace(card, repository=options.repository, revision=branch)
    model, read = model_of(meta), _Checkpoint(run, meta, options)
    if not pair:
        _export_model(read, out, params, model, card)
        return
    small = generator_of(model)
    both = (DISCRIMINATOR, params, model), (GENERATOR, generator_params(params), small)
    for name, tree, architecture in both:
        if name == GENERATOR and (reason := no_class(small)):
            print(f"left out: the generator ({reason}); it stays in {run}")
            continue
        own = {part: below for part, below in tree.items() if part != GENERATOR}
        of_one = dataclasses.replace(card, objectives=with_heads(own))
        _export_model(read, Path(out) / name, own, architecture, of_one)


def has_generator(run: Workdir) -> bool:
    """Returns whether the models of a run are a discriminator and a generator."""
    known = checkpoint.known_run(run)
    return known is not None and REPLACED_TOKENS.name in learned_by(config_of(known))


def _export_model(
    read: _Checkpoint,
    out: Path | str,
    params: Mapping[str, Any],
    model_config: ModelConfig,
    card: Card,
) -> None:
    """Exports a model of a checkpoint; of one that makes vectors of texts, a sentence encoder."""
    run, meta, options = read
    config = config_of(meta)
    sentence, optimizer = encoder_of_run(config, params), None
    if options.optimizer_state:
        optimizer = of_checkpoint(run, meta["step"], padding=False)
    if sentence and isinstance(model_config, TaskModelConfig):  # its heads are for training alone
        model_config = without_head(model_config)
        for head in sorted(names.groups_in(params) & all_heads()):
            if not all(map(is_layer, params[head])):
                print(f"left out: {names.title(head)}, which only training reads")
            params = {name: part for name, part in params.items() if name != head}
            optimizer = optimizer and optimizer.without(head)
        task = card.task and dataclasses.replace(card.task, labels=())
        card = dataclasses.replace(card, objectives=(), sentence=sentence, task=task)
    layout = find_layout(model_config)
    _, others = names.groups_by_file(params, layout)
    if others:
        lacking = f"{layout.class_name(params)} has no place for them"
        print(f"in {HEADS}, since {lacking}: {', '.join(map(names.title, sorted(others)))}")
    tokenizer = read_run_tokenizer(run, meta)
    origin = meta.get("init_origin")
    export(
        params, model_config, tokenizer, out, card=card, form=options.form, optimizer=optimizer,
        source={ORIGIN: origin} if origin else {}, sentence=sentence,
    )  # fmt: skip
    if not sentence and _is_sentence_encoder(config.init):
        what = "what makes a sentence encoder of"
        print(f"not carried over: {what} {config.init} (pool, layers after it)")
    averaged = ", its averaged weights," * (options.weights == "ema")
    print(f"step {meta['step']:,} of {run}{averaged} exported to {out}")


def _is_sentence_encoder(init: str) -> bool:
    """Returns whether a run started from a local folder of sentence-transformers."""
    return bool(init) and not is_remote(init) and (Path(split_step(init)[0]) / MODULES).is_file()


def _is_export(out: epath.Path) -> bool:
    """Returns whether a folder has nothing but an export; UserError if a file is no longer what
    SHA256SUMS says. False without it, as those who change an export on purpose remove it."""
    names = {entry.name for entry in out.iterdir()}
    others = {name for name in names - _FILES if not _written(name)}
    sums = checksums.read_checksums(Path(out)) if is_export(Path(out)) else None
    if sums is None:
        return False
    if others:
        raise UserError(
            f"{out / min(others)}: does not belong to the export in this folder; move it away or "
            "give a new folder"
        )
    for path in sorted(Path(out).rglob("*")):  # those in folders of parts, too
        name = path.relative_to(out).as_posix()
        if name == SUMS or (path.is_dir() and not path.is_symlink()):
            continue
        if not path.is_file() or file_digest(path) != sums.get(name):
            raise UserError(
                f"{path}: was edited after the export; move it away or give a new folder"
            )
    return True


def _has_exports(out: epath.Path) -> bool:
    """Returns whether a folder has nothing but exports of checkpoints, of which one may be
    unfinished."""
    for path in out.iterdir():
        if not _OF_SEVERAL.fullmatch(path.name):
            return False
        if not path.name.startswith("."):
            pair = any((path / name).is_dir() for name in (DISCRIMINATOR, GENERATOR))
            check_output(path, EXPORTS if pair else EXPORT)
    return True


EXPORT: Final = OutputKind("export", _is_export, is_folder=True, in_buckets=False, by_rename=True)
EXPORTS: Final = OutputKind("folder of exports", _has_exports, is_folder=True, in_buckets=False)


def _written(name: str) -> bool:
    """Returns whether an export may have written an entry beside those that every export has."""
    return bool(WEIGHT_FILE.fullmatch(name) or _PART.fullmatch(name))


def _temporary_path(out: Path, kind: str) -> Path:
    """Temporary path of this process for the new folder ("tmp") or the previous one ("old")."""
    return out.parent / f".{out.name}.{os.getpid()}.{kind}"


def _publish(temporary: Path, out: Path) -> None:
    """Moves the finished folder into place; a folder cannot be replaced in a single rename."""
    if not out.exists():
        atomic.publish(temporary, out)
        return
    atomic.sync_tree(temporary)  # before the old one is moved
    old = _temporary_path(out, "old")
    out.rename(old)
    try:
        atomic.publish(temporary, out)
    except BaseException:
        if not out.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(out: Path) -> None:
    """Cleans up after killed exports to `out`.

    An export killed between moving the old folder away and moving the new one into place leaves no
    `out`: the old folder is restored first, so that it exists until the new one is complete.
    """
    name = re.compile(rf"\.{re.escape(out.name)}\.\d+\.(tmp|old)")
    for path in [path for path in out.parent.glob(".*") if name.fullmatch(path.name)]:
        if path.suffix == ".old" and not out.exists():
            path.rename(out)
        else:
            shutil.rmtree(path, ignore_errors=True)
