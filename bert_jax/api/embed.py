"""Vectors of the lines of a file, of any size: computed in blocks, which a killed process resumes.

A block's vectors are a function of its lines alone, and blocks are cut by the input alone, so a
resumed run writes the same bytes. Finished blocks are files in `OUT.parts`; the end joins them.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import jax
import numpy as np
from etils import epath

from bert_jax.api.compiled import Pooling
from bert_jax.api.model import Model, Tokens, load
from bert_jax.api.small_vectors import Dtype
from bert_jax.api.vector_files import FORMATS, VECTORS, TokenTable, ranges_path, write_ranges
from bert_jax.config.task_settings import Join
from bert_jax.convert.sentence_encoder import SentenceEncoder
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks.rows import numbered_lines, wrong_row
from bert_jax.model.layer_states import parse_layers
from bert_jax.runtime.log import logger
from bert_jax.storage import atomic, json_record
from bert_jax.storage.digest import sha256
from bert_jax.storage.outputs import OutputKind, check_output, target_of
from bert_jax.storage.remote import is_special, storage_errors
from bert_jax.storage.versions import hashed
from bert_jax.workdir.inputs import inputs_of_model

# Limits of a block: lines, and characters, which limit the memory for token vectors.
_LINES: Final = 4096
_CHARACTERS: Final = {True: 1 << 20, False: 1 << 17}  # one vector a line, or one a token
_SETTINGS: Final = "settings.json"


class Line(NamedTuple):
    """A text and, with a column of spans, the characters whose vector is wanted."""

    row: int
    text: str
    span: tuple[int, int] | None


@dataclass(frozen=True)
class Settings:
    """Settings of the vectors to compute.

    Attributes:
        pooling: "none" is one vector a token; None: as the model's folder says, otherwise "mean".
        spans: whether every line is `text<TAB>START:END`, and its vector is that of the tokens of
            these characters.
        prompt: name of the folder's prompt to put before every line; None: its default.
        dimensions: first numbers of a vector that are kept; None: all. They are not normalized
            again, as with `truncate_dim` of sentence-transformers.
        dtype: of the vectors in the file.
    """

    layers: str = "-1"
    join: Join = "concat"
    pooling: Pooling | Literal["none"] | None = None
    spans: bool = False
    batch_size: int | None = None
    prompt: str | None = None
    dimensions: int | None = None
    dtype: Dtype = "float32"


def embed(
    model: Path, lines: Path, out: Path, settings: Settings, *, overwrite: bool = False
) -> str:
    """Writes the vectors of a file's lines in their order; returns one line about them.

    Args:
        model: folder of an exported or imported model.
        lines: a text on every line.
        out: `.npy` for one vector a line, float32 or int8 [lines, D], or uint8 [lines, D / 8];
            `.parquet` for token vectors. The ranges of int8 codes are in a file beside.
        overwrite: replace an existing file, which carries no mark of who wrote it.

    Raises:
        UserError: there is no such model or file, `out` may not be written (see `check_output`) or
            has another ending, `lines` changes meanwhile, a line is not UTF-8 or its span holds no
            token, the model has no such prompt or number of dimensions, or `OUT.parts` is of
            others, of other lines or settings.
        StorageError: the disk is full.
    """
    _check_files(lines, out, settings)
    parts = target_of(out).with_name(f"{target_of(out).name}.parts")
    inputs = [*inputs_of_model(model), lines]
    check_output(out, VECTORS, inputs=inputs, overwrite=overwrite)
    if settings.dtype == "int8" and not parts.exists():  # a killed run may have written the ranges
        check_output(ranges_path(out), VECTORS, inputs=inputs, overwrite=overwrite)
    form = FORMATS[out.suffix]
    form.check()
    loaded = load(model)
    if settings.pooling is None and (settings.spans or not loaded.sentence):
        settings = replace(settings, pooling="mean")
    _check_vectors(model, loaded, settings)
    with storage_errors(lines):
        text = hashed(lines)
    _claim(parts, _identity(loaded, text.digest, settings))
    cut = 0
    blocks = _blocks(_read(lines, spans=settings.spans), _CHARACTERS[settings.pooling != "none"])
    for number, block in enumerate(blocks):
        # The name of a part has the number of its texts that were cut, for the total at the end.
        found = next(parts.glob(f"{number:08}-*"), None)
        if found is None:
            wanted = settings.spans or settings.pooling == "none"
            prompt = "" if wanted else loaded.prompt(settings.prompt)
            tokens = loaded.tokens([f"{prompt}{line.text}" for line in block], spans=wanted)
            shorter = sum(text.cut > 0 for text in tokens)
            found = parts / f"{number:08}-{shorter}{out.suffix}"
            made = _vectors(loaded, lines, block, tokens, settings)
            text = text.checked()
            atomic.write_bytes(found, form.to_bytes(made))
            logger.info("%s lines done", f"{block[-1].row:,}")
        cut += int(found.stem.partition("-")[2])
    text.checked()
    check_output(out, VECTORS, overwrite=overwrite)
    written = _join(parts, lines, out, settings.dtype, overwrite=overwrite)
    notes = f"; {count(cut, 'text')} cut to the model's longest row" if cut else ""
    return f"{out}: {written}{notes}"


def _check_files(lines: Path, out: Path, settings: Settings) -> None:
    """Raises UserError for names of files that cannot be."""
    wanted = ".parquet" if settings.pooling == "none" else ".npy"
    if out.suffix != wanted:
        kind = "token vectors" if wanted == ".parquet" else "vectors of lines"
        raise UserError(f"{out}: {kind} are written as {wanted}; give a name with that ending")
    if settings.spans and settings.pooling not in (None, "mean", "max"):
        raise UserError(f"a column of spans needs pooling=mean or max, not {settings.pooling}")
    if wanted == ".parquet" and (settings.dtype != "float32" or settings.dimensions):
        raise UserError("token vectors are float32 of all dimensions; leave the others out")
    if settings.prompt is not None and (wanted == ".parquet" or settings.spans):
        raise UserError(f"prompt={settings.prompt}: vectors of tokens are those of the line alone")
    if is_special(lines):
        raise UserError(f"{lines}: not a file, so it cannot be read twice; write its lines to one")


def _check_vectors(path: Path, model: Model, settings: Settings) -> None:
    """Raises UserError for vectors that the model in a folder does not give."""
    layers = len(parse_layers(settings.layers, model.config.num_hidden_layers))
    width = model.config.hidden_size * (layers if settings.join == "concat" else 1)
    if model.sentence and settings.pooling is None:
        width = model.sentence.width
    if settings.dimensions and settings.dimensions > width:
        raise UserError(f"{path}: dimensions={settings.dimensions:,}, but a vector has {width:,}")
    if settings.dtype == "binary" and (settings.dimensions or width) % 8:
        raise UserError(
            f"{path}: {settings.dimensions or width:,} dimensions are no whole bytes of bits; give "
            "dimensions, a multiple of 8"
        )


def _identity(model: Model, digest: str, settings: Settings) -> str:
    """Returns what the parts depend on, as JSON; digest: of the lines."""
    leaves = jax.tree.leaves(model.params)
    weights = sha256("".join(sha256(np.asarray(x).tobytes()) for x in leaves).encode())
    values = {
        "lines": digest,
        "weights": weights,
        "tokenizer": model.tokenizer.digest,
        "devices": jax.local_device_count(),  # batches depend on it, and so may the last bits
        **asdict(settings),
        **({"sentence": _parts_of(model.sentence)} if model.sentence else {}),
    }
    return json.dumps(values, indent=1)


def _parts_of(sentence: SentenceEncoder) -> str:
    """Returns a digest of what makes vectors of texts."""
    weights = [
        (name, sha256(tensor.tobytes()))
        for part in sentence.weights
        for name, tensor in sorted(part.items())
    ]
    return sha256(repr((replace(sentence, weights=()), weights)).encode())


def _claim(parts: Path, identity: str) -> None:
    """Makes the folder of parts; UserError if it is of others, or has parts of something else."""
    check_output(parts, PARTS)
    with storage_errors(parts, "cannot be a folder for parts", "; move it away"):
        parts.mkdir(exist_ok=True)
    settings = parts / _SETTINGS
    others = [path for path in parts.iterdir() if path != settings]
    if not others:
        atomic.write_text(settings, identity)
        return
    now = json.loads(identity)
    try:
        with storage_errors(settings, "cannot be read", f"; delete {parts}"):
            before = json_record.read_json(settings, dict)
    except ValueError as error:
        raise UserError(f"{settings}: {error}; delete {parts}") from None
    if before != now:
        changed = ", ".join(key for key in now if before.get(key) != now[key])
        raise UserError(f"{parts}: parts of another run ({changed} differ); delete it")
    logger.info("resuming from %s", parts)


def _has_settings(folder: epath.Path) -> bool:
    """Returns whether `_claim` made a folder, or was ended while it did."""
    try:
        form = dict.fromkeys(("lines", "weights", "tokenizer"), str)
        return json_record.holds(folder / _SETTINGS, form)
    except FileNotFoundError:
        return all(path.name.startswith(f".{_SETTINGS}.") for path in folder.iterdir())


PARTS: Final = OutputKind("folder of parts", _has_settings, is_folder=True, in_buckets=False)


def _read(path: Path, *, spans: bool) -> Iterator[Line]:
    for row, line in numbered_lines(path):
        text, span = line.rstrip("\r\n"), None
        if spans:
            text, tab, ends = text.rpartition("\t")
            start, colon, end = ends.partition(":")
            if not (tab and colon and start.isdecimal() and end.isdecimal()):
                wrong_row(path, row, f"{ends[:60]!r} is not START:END after a tab, such as 4:9")
            span = int(start), int(end)
            if not span[0] < span[1] <= len(text):
                wrong_row(path, row, f"{ends} is not in a text of {len(text)} characters")
        yield Line(row, text, span)


def _blocks(lines: Iterator[Line], characters: int) -> Iterator[list[Line]]:
    """Yields the lines in blocks, each full at a number of lines or of characters."""
    for first in lines:
        block, size = [first], len(first.text)
        while size < characters and len(block) < _LINES and (line := next(lines, None)):
            block.append(line)
            size += len(line.text)
        yield block


def _vectors(
    model: Model, path: Path, block: list[Line], tokens: list[Tokens], settings: Settings
) -> np.ndarray | TokenTable:
    """Returns float32 [lines, D], or a table of tokens."""
    chosen: dict[str, Any] = {
        "layers": settings.layers, "join": settings.join, "batch_size": settings.batch_size
    }  # fmt: skip
    texts = [line.text for line in block]
    if settings.pooling != "none" and not settings.spans:
        found = model.encode(texts, pooling=settings.pooling, prompt_name=settings.prompt, **chosen)
        return found[:, : settings.dimensions]
    states = model.hidden_states(texts, **chosen)
    if settings.pooling == "none":
        names = [[model.tokenizer.token(i) for i in text.ids] for text in tokens]
        spans = [text.spans for text in tokens if text.spans is not None]
        return TokenTable([line.row - 1 for line in block], texts, names, spans, states)
    reduce = np.mean if settings.pooling == "mean" else np.max
    pooled = [
        reduce(x[_tokens_of(path, line, text)], axis=0)
        for line, text, x in zip(block, tokens, states, strict=True)
    ]
    return np.stack(pooled)[:, : settings.dimensions]


def _tokens_of(path: Path, line: Line, tokens: Tokens) -> np.ndarray:
    """Returns the positions of a span's tokens; UserError if it has none in the model's row."""
    assert line.span is not None
    assert tokens.spans is not None
    start, end = line.span
    inside = np.flatnonzero((tokens.spans[:, 1] > start) & (tokens.spans[:, 0] < end))
    if not len(inside):
        far = " within the model's longest row" if tokens.cut else ""
        wrong_row(path, line.row, f"no token is in {start}:{end}, {line.text[start:end]!r}{far}")
    return inside + 1  # after [CLS]


def _join(parts: Path, lines: Path, out: Path, dtype: Dtype, *, overwrite: bool) -> str:
    """Joins the parts to one file and deletes them; returns its size in words."""
    files = sorted(parts.glob(f"*{out.suffix}"))
    if not files:
        shutil.rmtree(parts)
        raise UserError(f"{lines}: no line to embed; give a file with a text on every line")
    ranges = write_ranges(out, files, overwrite=overwrite) if dtype == "int8" else None
    whole = parts / "joined"
    written = FORMATS[out.suffix].join(files, whole, dtype, ranges)
    atomic.publish(whole, target_of(out))
    shutil.rmtree(parts)
    return written
