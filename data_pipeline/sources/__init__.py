"""Sources of raw text, one module per kind.

To add a kind, write a module that defines a `Kind` and a row of `KINDS`.
"""

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.sources import reading
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found, NothingFoundError
from bert_jax.data_pipeline.sources.formats import extension, format_of_name, remedy_of_kind
from bert_jax.data_pipeline.sources.kind import Kind, Option
from bert_jax.data_pipeline.sources.other_kinds import naming_other_kind
from bert_jax.data_pipeline.text.line_ends import unify_line_ends
from bert_jax.data_pipeline.text.sentences import check_language
from bert_jax.errors import UserError, hub_hint, nearest
from bert_jax.extensions.registry import Registry
from bert_jax.storage import hub
from bert_jax.storage.read_files import path_of
from bert_jax.storage.remote import is_remote, name_of_address

_HERE: Final = "bert_jax.data_pipeline.sources"
# Kinds whose files bert-jax writes: not for the command line.
_WRITTEN: Final[Registry[Kind]] = Registry(
    "written kind", f"{_HERE}.kind:Kind", {"documents": f"{_HERE}.documents:KIND"}
)
# In the order in which they are guessed for a folder with files of several kinds.
KINDS: Final[Registry[Kind]] = Registry(
    "source kind",
    f"{_HERE}.kind:Kind",
    {
        "wikiextractor": f"{_HERE}.wikiextractor:KIND",
        "books": f"{_HERE}.books:KIND",
        "lines": f"{_HERE}.lines:KIND",
        "dump": f"{_HERE}.dump:KIND",
        "parquet": f"{_HERE}.parquet:KIND",
        "arrow": f"{_HERE}.arrow:KIND",
        "csv": f"{_HERE}.csv_file:KIND",
        "jsonl": f"{_HERE}.jsonl:KIND",
        "hf": f"{_HERE}.hub_dataset:KIND",
        "tfds": f"{_HERE}.tfds:KIND",
        "python": f"{_HERE}.python_docs:KIND",
    },
    reserved=_WRITTEN,
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+", text):
        raise UserError("a name may have only letters, digits, '_', '-' and '.'")
    return text


# The options that every kind has.
_COMMON: Final = (Option("name", "name", "NAME", _name), Option("lang", "language", "CODE"))


def described() -> str:
    """Returns the kinds with their options, for the help of `--source`."""
    return f"KIND:PATH{_shown(_COMMON)}, kinds " + ", ".join(
        f"{name}{_shown(kind.options)}{' (no path)' if kind.locate('', '') else ''}"
        for name, kind in KINDS.items()
    )


def _shown(options: tuple[Option, ...]) -> str:
    return "".join(f"[,{option.name}={option.shown}]" for option in options)


def kind_of(spec: SourceSpec) -> Kind:
    """Returns the kind that reads this source; UserError, with the remedy, if there is none."""
    return _WRITTEN[spec.kind] if spec.kind in _WRITTEN else _known(spec.kind)


def _known(kind: str) -> Kind:
    if kind not in KINDS:
        remedy = remedy_of_kind(kind)
        hint = f"; {remedy}" if remedy else hub_hint(kind, "dataset") or nearest(kind, KINDS)
        raise UserError(f"source kind {kind!r} is unknown{hint}")
    return KINDS[kind]


def parse_source(text: str, data_dir: str = "", allow_partial: bool = False) -> SourceSpec:
    """Parses a source from the command line: `kind:path[,name=…][,lang=…]` and the options of the
    kind, of which SourceSpec has the defaults. The name defaults to that of a
    dataset of the hub, else to the kind.

    `python` needs no path: it reads the standard library of the running Python, with
    `packages=numpy+scipy` installed packages, too.

    Args:
        data_dir: where the datasets of TensorFlow Datasets are (see `tfds.KIND`).
        allow_partial: see `SourceSpec`.

    Raises:
        UserError: an unknown kind, option or language, or a missing path.
    """
    head, *words = re.split(r",(?=\w+=)", text)
    name, colon, path = head.partition(":")
    if name not in KINDS and (not colon or path.startswith("//")):
        form = format_of_name(Path(head))
        guess = guess_kind(Path(head))
        example = form.remedy if form else f"write KIND:PATH, for example {guess}:{head}"
        if on_hub := name_of_address(head):
            example = f"on the Hugging Face hub it is {on_hub}"
        elif "/" in head and hub_hint("/".join(head.split("/")[:2])) and not form:
            example += f", or hf:{head} for a dataset on the Hugging Face hub"
        raise UserError(f"--source={text}: missing kind; {example} (kinds: {', '.join(KINDS)})")
    if name in _WRITTEN:
        raise UserError(f"--source={text}: only bert_jax.build_store, in Python, takes documents")
    kind = _known(name)
    options = {option.name: option for option in (*_COMMON, *kind.options)}
    fields: dict[str, Any] = {"allow_partial": allow_partial}
    for key, value in (word.split("=", 1) for word in words):
        if key not in options:
            raise UserError(f"--source={text}: unknown option {key!r}{nearest(key, options)}")
        try:
            fields[options[key].field] = options[key].parse(value)
        except UserError as error:
            raise UserError(f"--source={text}: {error}") from None
    path = kind.locate(path, data_dir)
    fields.setdefault("name", kind.default_name(path) or name)
    spec = SourceSpec(name, path_of(path), **fields)
    check_language(spec.language)
    if not path:
        raise UserError(f"--source={text}: missing path; write {name}:{kind.form}")
    return spec


def written(spec: SourceSpec, path: os.PathLike[str] | str) -> str:
    """Returns a source with another path as `parse_source` reads it, but for its name."""
    own = dataclasses.replace(spec, path=path_of(os.fspath(path)))
    default, said = SourceSpec(own.kind, own.path, own.name), str(path)
    if not hub.is_hub(path):  # the kind is in a name on the hub
        said = f"{own.kind}:{said}"
    for option in (*_COMMON, *kind_of(own).options):
        value = getattr(own, option.field)
        if option.name != "name" and value != getattr(default, option.field):
            said += f",{option.name}={'+'.join(value) if isinstance(value, tuple) else value}"
    return said


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
    if kind.plain_text:
        reading.check(path, markup=kind.markup)


def ranges(spec: SourceSpec, path: Path) -> list[Range]:
    """Returns the ranges of one file, in order; they depend on its content and `spec` alone."""
    kind = kind_of(spec)
    with naming_other_kind(kind, path):
        return list(kind.ranges(spec, path))


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
    kind = kind_of(spec)
    with naming_other_kind(kind, part.path):
        yield from kind.read(spec, part)


def guess_kind(path: Path) -> str:
    """Guesses the kind of a user's file or folder of text; books if no other one fits."""
    rows = KINDS.items()
    if not path.is_file():
        marked = (n for n, kind in rows if any((path / mark).exists() for mark in kind.marks))
        known = (n for n, kind in rows if kind.extensions or kind.begins)
        return next(marked, "") or next((n for n in known if _fits(n, path)), "books")
    named = next((n for n, kind in rows if extension(path) in kind.extensions), "books")
    if not KINDS[named].plain_text:
        return named
    return next((n for n, kind in rows if kind.begins and kind.begins(path)), named)


def _fits(kind: str, path: Path) -> bool:
    """Returns whether a folder has files of this kind."""
    try:
        kind_of(spec := SourceSpec(kind, path, "")).find(spec)
    except UserError:
        return False
    return True
