"""Sources of raw text, by kind.

A kind is a module with `find(spec) -> Found`, `read(spec, path) -> Iterator[Document]`, `RULES`
(the cleaning rules for its residue), `MARKUP` (whether a file of markup or JSON is refused) and
`CUT_BECAUSE`, `CUT_REMEDY` (why its documents may be cut by a line count, and what to do then). To
add one, write the module and name it in `KINDS`.
"""

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol, cast

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources import books, lines, python_docs, reading, wikiextractor
from bert_jax.data_pipeline.sources.document import Document, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import remedy_of_kind
from bert_jax.data_pipeline.text.clean import Rule
from bert_jax.data_pipeline.text.sentences import check_language

__all__ = [
    "KINDS",
    "Document",
    "Found",
    "Kind",
    "SourceSpec",
    "check",
    "find",
    "guess_kind",
    "kind_of",
    "parse_source",
    "read",
    "units",
]


_SURROGATE = re.compile("[\ud800-\udfff]")


class Kind(Protocol):
    """What a module of this package offers."""

    RULES: tuple[Rule, ...]
    MARKUP: bool
    CUT_BECAUSE: str
    CUT_REMEDY: str

    def find(self, spec: SourceSpec) -> Found: ...
    def read(self, spec: SourceSpec, path: Path) -> Iterator[Document]: ...


KINDS: dict[str, Kind] = {
    "wikiextractor": cast(Kind, wikiextractor),
    "books": cast(Kind, books),
    "lines": cast(Kind, lines),
    "python": cast(Kind, python_docs),
}


def kind_of(spec: SourceSpec) -> Kind:
    """The module that reads this source; UserError, with what to do, if there is none."""
    if spec.kind not in KINDS:
        hint = remedy_of_kind(spec.kind) or _nearest(spec.kind, KINDS)
        raise UserError(f"source kind {spec.kind!r} is unknown; {hint}")
    return KINDS[spec.kind]


def _nearest(name: str, names: Collection[str]) -> str:
    there = f"there are {', '.join(names)}"
    near = difflib.get_close_matches(name.lower(), names, 1, 0.6)
    return f"did you mean {near[0]!r}? ({there})" if near else there


def parse_source(text: str) -> SourceSpec:
    """A source from the command line: `kind:path[,name=…][,lang=…][,lines=…]`.

    `python` needs no path: it reads the standard library of the running Python. The name defaults
    to the kind, the language to en, lines (see SourceSpec.document_lines) to 200.

    Raises:
        UserError: unknown kind, option or language, or no path.
    """
    head, *options = re.split(r",(?=\w+=)", text)
    kind, colon, path = head.partition(":")
    if not colon and kind not in KINDS:
        raise UserError(
            f"--source={text}: no kind; write KIND:PATH, such as books:{head} (kinds are "
            f"{', '.join(KINDS)})"
        )
    values = {"name": kind, "lang": "en", "lines": str(SourceSpec.document_lines)}
    for option in options:
        key, _, value = option.partition("=")
        if key not in values:
            raise UserError(f"--source={text}: no option {key!r}; {_nearest(key, values)}")
        values[key] = value
    if kind == "python" and not path:
        path = str(python_docs.standard_library())
    if not values["lines"].isdigit() or int(values["lines"]) < 1:
        raise UserError(f"--source={text}: lines={values['lines']} must be a whole number above 0")
    if not re.fullmatch(r"[\w.-]+", values["name"]):
        raise UserError(f"--source={text}: a name is made of letters, digits, '_', '-' and '.'")
    spec = SourceSpec(kind, Path(path), values["name"], values["lang"], int(values["lines"]))
    kind_of(spec)
    check_language(spec.language)
    if not path:
        raise UserError(f"--source={text}: no path; write {kind}:/path/to/text")
    return spec


def find(spec: SourceSpec) -> Found:
    """The files of a source, sorted, and what of its folder is left out. UserError if none."""
    return kind_of(spec).find(spec)


def units(spec: SourceSpec) -> list[Path]:
    """The files of a source, sorted. UserError if there are none."""
    return find(spec).files


def check(spec: SourceSpec, path: Path) -> None:
    """UserError, with what to do, if one of its files shows another format at its start."""
    reading.check(path, markup=kind_of(spec).MARKUP)


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """The documents of one of its files, in order, raw.

    JSON and Python can spell half a surrogate pair, which is no character and fits no encoding:
    it becomes U+FFFD, which cleaning takes away and counts.
    """
    for document in kind_of(spec).read(spec, path):
        if _SURROGATE.search(document.text) or _SURROGATE.search(document.title):
            text, title = (_SURROGATE.sub("\ufffd", s) for s in (document.text, document.title))
            document = dataclasses.replace(document, text=text, title=title)
        yield document


def guess_kind(path: Path) -> str:
    """The kind that a user's file or folder of text probably is: wikiextractor or books."""
    if path.is_file():
        return "wikiextractor" if wikiextractor.is_written_so(path) else "books"
    try:
        wikiextractor.find(SourceSpec("wikiextractor", path, ""))
    except UserError:
        return "books"
    return "wikiextractor"
