"""Sources of raw text, one module per kind.

To add a kind, write a module with the names of `Kind` and register it in `KINDS`.
"""

import dataclasses
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from bert_jax.data_pipeline.sources import (
    arrow,
    books,
    csv_file,
    documents,
    dump,
    jsonl,
    lines,
    parquet,
    python_docs,
    reading,
    tfds,
    wikiextractor,
)
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found, NothingFoundError
from bert_jax.data_pipeline.sources.formats import extension, format_of_name, remedy_of_kind
from bert_jax.data_pipeline.sources.other_kinds import naming_other_kind
from bert_jax.data_pipeline.text.clean import Rule
from bert_jax.data_pipeline.text.line_ends import unify_line_ends
from bert_jax.data_pipeline.text.sentences import check_language
from bert_jax.errors import UserError, nearest
from bert_jax.storage.files import path_of
from bert_jax.storage.remote import is_remote

_SURROGATE = re.compile("[\ud800-\udfff]")


class Kind(Protocol):
    """The interface of a source module."""

    RULES: tuple[Rule, ...]  # for cleaning
    PLAIN_TEXT: bool  # whether its files are; if so, those of other formats are rejected
    MARKUP: bool  # whether these include markup and JSON
    OPTIONS: tuple[str, ...]  # on the command line, besides name and lang
    LIBRARIES: tuple[str, ...]  # packages whose version decides what is read
    CUT_BECAUSE: str  # why its documents may be cut at a line count
    CUT_REMEDY: str  # how to avoid it

    def find(self, spec: SourceSpec) -> Found: ...
    def ranges(self, spec: SourceSpec, path: Path) -> Iterator[Range]: ...
    def read(self, spec: SourceSpec, part: Range) -> Iterator[Document]: ...


KINDS: dict[str, Kind] = {
    "wikiextractor": wikiextractor,
    "books": books,
    "lines": lines,
    "dump": dump,
    "jsonl": jsonl,
    "csv": csv_file,
    "parquet": parquet,
    "arrow": arrow,
    "tfds": tfds,
    "python": python_docs,
}
# Kinds whose files bert-jax writes: not for the command line.
_WRITTEN: dict[str, Kind] = {"documents": documents}


# The option of a source on the command line -> the field of SourceSpec.
_OPTIONS: Final = {
    "name": "name",
    "lang": "language",
    "lines": "document_lines",
    "packages": "packages",
    "text": "text",
    "title": "title",
    "columns": "columns",
    "split": "split",
}
# Kinds that are known by the extensions of their files, the surest first.
_ROWS: Final = {"parquet": parquet, "arrow": arrow, "csv": csv_file, "jsonl": jsonl}
_LISTS: Final = ("packages", "columns")  # A+B


def kind_of(spec: SourceSpec) -> Kind:
    """Returns the module that reads this source; UserError, with the remedy, if there is none."""
    return _WRITTEN[spec.kind] if spec.kind in _WRITTEN else _module(spec.kind)


def _module(kind: str) -> Kind:
    if kind not in KINDS:
        remedy = remedy_of_kind(kind)
        hint = f"; {remedy}" if remedy else nearest(kind, KINDS)
        raise UserError(f"source kind {kind!r} is unknown{hint}")
    return KINDS[kind]


def parse_source(text: str, data_dir: str = "") -> SourceSpec:
    """Parses a source from the command line: `kind:path[,name=…][,lang=…]` and the options of the
    kind, of which SourceSpec has the defaults. The name defaults to the kind.

    `python` needs no path: it reads the standard library of the running Python, with
    `packages=numpy+scipy` installed packages, too.

    Args:
        data_dir: where the datasets of TensorFlow Datasets are (see `tfds.dataset_path`).

    Raises:
        UserError: an unknown kind, option or language, or a missing path.
    """
    head, *options = re.split(r",(?=\w+=)", text)
    kind, colon, path = head.partition(":")
    if not colon and kind not in KINDS:
        form = format_of_name(Path(head))
        example = form.remedy if form else f"write KIND:PATH, for example books:{head}"
        raise UserError(f"--source={text}: missing kind; {example} (kinds: {', '.join(KINDS)})")
    if kind in _WRITTEN:
        raise UserError(f"--source={text}: written by bert_jax.build_store; use it from Python")
    valid = ("name", "lang", *_module(kind).OPTIONS)
    values = {"name": kind} | dict(option.split("=", 1) for option in options)
    for key in values:
        if key not in valid:
            raise UserError(f"--source={text}: unknown option {key!r}{nearest(key, valid)}")
    if kind == "python" and not path:
        path = sysconfig.get_path("stdlib")
    if kind == "tfds":
        path = tfds.dataset_path(path, data_dir)
    fields = {_OPTIONS[key]: _value(text, key, value) for key, value in values.items()}
    spec = SourceSpec(kind, path_of(path), **fields)
    check_language(spec.language)
    if not path:
        raise UserError(f"--source={text}: missing path; write {kind}:/path/to/text")
    return spec


def _value(text: str, key: str, value: str) -> Any:
    """Returns the value of an option of the source `text`; UserError if it cannot have this one."""
    if key in _LISTS:
        return tuple(part for part in value.split("+") if part)
    if key == "lines":
        if not value.isdigit() or int(value) < 1:
            raise UserError(f"--source={text}: lines={value} must be a positive integer")
        return int(value)
    if key == "name" and not re.fullmatch(r"[\w.-]+", value):
        raise UserError(f"--source={text}: a name may have only letters, digits, '_', '-' and '.'")
    if key == "text" and not value:
        raise UserError(f"--source={text}: text= needs the name of a column")
    return value


def find(spec: SourceSpec) -> Found:
    """Returns the sorted files of a source and the skipped paths. UserError if no file is found; of
    a folder with files of another kind it names that kind."""
    try:
        return kind_of(spec).find(spec)
    except NothingFoundError as error:
        if "--source=" in str(error) or is_remote(spec.path) or not spec.path.is_dir():
            raise
        kind = guess_kind(spec.path)
        if kind == spec.kind or not _fits(kind, spec.path):
            raise
        raise UserError(
            f"{error}; its files look like {kind}: --source={kind}:{spec.path}"
        ) from None


def check(spec: SourceSpec, path: Path) -> None:
    """Raises UserError, with the remedy, if the file starts like one of another format."""
    kind = kind_of(spec)
    if kind.PLAIN_TEXT:
        reading.check(path, markup=kind.MARKUP)


def ranges(spec: SourceSpec, path: Path) -> list[Range]:
    """Returns the ranges of one file, in order; they depend on its content and `spec` alone."""
    with naming_other_kind(spec.kind, path):
        return list(kind_of(spec).ranges(spec, path))


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """Yields the raw documents of one file, in order, as `read_range` does."""
    return read_range(spec, Range(path))


def read_range(
    spec: SourceSpec, part: Range, skipped: Counter[str] | None = None
) -> Iterator[Document]:
    """Yields the raw documents of one range of a file, in order.

    The lines of its text end with LF, whatever ended them in a value or a file. JSON and Python can
    contain lone surrogates, which are not characters and cannot be encoded: they become U+FFFD,
    which cleaning removes and counts.

    Args:
        skipped: counts documents that do not belong to the corpus, by reason; they are not yielded.
    """
    for document in _documents(spec, part):
        if document.skipped:
            if skipped is not None:
                skipped[document.skipped] += 1
            continue
        if "\r" in document.text:
            document = dataclasses.replace(document, text=unify_line_ends(document.text))
        if _SURROGATE.search(document.text) or _SURROGATE.search(document.title):
            text, title = (_SURROGATE.sub("\ufffd", s) for s in (document.text, document.title))
            document = dataclasses.replace(document, text=text, title=title)
        yield document


def _documents(spec: SourceSpec, part: Range) -> Iterator[Document]:
    with naming_other_kind(spec.kind, part.path):
        yield from kind_of(spec).read(spec, part)


def guess_kind(path: Path) -> str:
    """Guesses the kind of a user's file or folder of text; books if no other one fits."""
    if path.is_file():
        kind = next((kind for kind, module in _ROWS.items() if _has_extension(path, module)), "")
        is_text = kind in ("", "jsonl")
        return "wikiextractor" if is_text and wikiextractor.is_extracted(path) else kind or "books"
    if (path / arrow.STATE).exists() or (path / arrow.SPLITS).exists():
        return "arrow"
    return next((kind for kind in ("wikiextractor", "books", *_ROWS) if _fits(kind, path)), "books")


def _has_extension(path: Path, module: Any) -> bool:
    return extension(path) in module.EXTENSIONS


def _fits(kind: str, path: Path) -> bool:
    """Returns whether a folder has files of this kind."""
    try:
        kind_of(spec := SourceSpec(kind, path, "")).find(spec)
    except UserError:
        return False
    return True
