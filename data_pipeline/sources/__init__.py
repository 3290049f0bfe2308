"""Sources of raw text, one module per kind.

To add a kind, write a module with the names of `Kind` and register it in `KINDS`.
"""

import dataclasses
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bert_jax.data_pipeline.errors import UserError, nearest
from bert_jax.data_pipeline.sources import (
    books,
    documents,
    dump,
    lines,
    python_docs,
    reading,
    wikiextractor,
)
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import format_of_name, remedy_of_kind
from bert_jax.data_pipeline.storage.files import path_of
from bert_jax.data_pipeline.text.clean import Rule
from bert_jax.data_pipeline.text.sentences import check_language

_SURROGATE = re.compile("[\ud800-\udfff]")


class Kind(Protocol):
    """The interface of a source module."""

    RULES: tuple[Rule, ...]  # for cleaning
    MARKUP: bool  # whether markup and JSON files are rejected
    # Packages whose version decides what is read. A kind with any reads no files of plain text.
    LIBRARIES: tuple[str, ...]
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
    "python": python_docs,
}
# Kinds whose files bert-jax writes: not for the command line.
_WRITTEN: dict[str, Kind] = {"documents": documents}


def kind_of(spec: SourceSpec) -> Kind:
    """Returns the module that reads this source; UserError, with the remedy, if there is none."""
    if spec.kind in _WRITTEN:
        return _WRITTEN[spec.kind]
    if spec.kind not in KINDS:
        remedy = remedy_of_kind(spec.kind)
        hint = f"; {remedy}" if remedy else nearest(spec.kind, KINDS)
        raise UserError(f"source kind {spec.kind!r} is unknown{hint}")
    return KINDS[spec.kind]


def parse_source(text: str) -> SourceSpec:
    """Parses a source from the command line: `kind:path[,name=…][,lang=…][,lines=…][,packages=…]`.

    `python` needs no path: it reads the standard library of the running Python, with
    `packages=numpy+scipy` installed packages, too. The name defaults to the kind, the language to
    en, lines (see SourceSpec.document_lines) to 200.

    Raises:
        UserError: an unknown kind, option or language, or a missing path.
    """
    head, *options = re.split(r",(?=\w+=)", text)
    kind, colon, path = head.partition(":")
    if not colon and kind not in KINDS:
        form = format_of_name(Path(head))
        example = form.remedy if form else f"write KIND:PATH, for example books:{head}"
        raise UserError(f"--source={text}: missing kind; {example} (kinds: {', '.join(KINDS)})")
    values = {"name": kind, "lang": "en", "lines": str(SourceSpec.document_lines), "packages": ""}
    for option in options:
        key, _, value = option.partition("=")
        if key not in values:
            raise UserError(f"--source={text}: unknown option {key!r}{nearest(key, values)}")
        values[key] = value
    if kind == "python" and not path:
        path = sysconfig.get_path("stdlib")
    if not values["lines"].isdigit() or int(values["lines"]) < 1:
        raise UserError(f"--source={text}: lines={values['lines']} must be a positive integer")
    if not re.fullmatch(r"[\w.-]+", values["name"]):
        raise UserError(f"--source={text}: a name may have only letters, digits, '_', '-' and '.'")
    if kind in _WRITTEN:
        raise UserError(f"--source={text}: written by bert_jax.build_store; use it from Python")
    packages = tuple(name for name in values["packages"].split("+") if name)
    if packages and kind != "python":
        raise UserError(f"--source={text}: only python has packages; leave out packages=")
    spec = SourceSpec(
        kind, path_of(path), values["name"], values["lang"], int(values["lines"]), packages
    )
    kind_of(spec)
    check_language(spec.language)
    if not path:
        raise UserError(f"--source={text}: missing path; write {kind}:/path/to/text")
    return spec


def find(spec: SourceSpec) -> Found:
    """Returns the sorted files of a source and the skipped paths. UserError if no file is found."""
    return kind_of(spec).find(spec)


def check(spec: SourceSpec, path: Path) -> None:
    """Raises UserError, with the remedy, if the file starts like one of another format."""
    kind = kind_of(spec)
    if not kind.LIBRARIES:
        reading.check(path, markup=kind.MARKUP)


def ranges(spec: SourceSpec, path: Path) -> list[Range]:
    """Returns the ranges of one file, in order; they depend on its content and `spec` alone."""
    return list(kind_of(spec).ranges(spec, path))


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """Yields the raw documents of one file, in order, as `read_range` does."""
    return read_range(spec, Range(path))


def read_range(
    spec: SourceSpec, part: Range, skipped: Counter[str] | None = None
) -> Iterator[Document]:
    """Yields the raw documents of one range of a file, in order.

    JSON and Python can contain lone surrogates, which are not characters and cannot be encoded:
    they become U+FFFD, which cleaning removes and counts.

    Args:
        skipped: counts documents that do not belong to the corpus, by reason; they are not yielded.
    """
    for document in kind_of(spec).read(spec, part):
        if document.skipped:
            if skipped is not None:
                skipped[document.skipped] += 1
            continue
        if _SURROGATE.search(document.text) or _SURROGATE.search(document.title):
            text, title = (_SURROGATE.sub("\ufffd", s) for s in (document.text, document.title))
            document = dataclasses.replace(document, text=text, title=title)
        yield document


def guess_kind(path: Path) -> str:
    """Guesses the kind of a user's file or folder of text: wikiextractor or books."""
    if path.is_file():
        return "wikiextractor" if wikiextractor.is_extracted(path) else "books"
    try:
        wikiextractor.find(SourceSpec("wikiextractor", path, ""))
    except UserError:
        return "books"
    return "wikiextractor"
