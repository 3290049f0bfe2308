"""Sources of raw text, by kind.

A kind is a module with `units(spec) -> list[Path]`, `read(spec, path) -> Iterator[Document]`,
`RULES` (the cleaning rules for its residue) and `CUT_BECAUSE` (why its documents may be cut by a
line count). To add one, write the module and name it in `KINDS`.
"""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from data_pipeline.clean import Rule
from data_pipeline.errors import UserError
from data_pipeline.sentences import check_language
from data_pipeline.sources import books, lines, python_docs, wikiextractor
from data_pipeline.sources.document import Document, SourceSpec

__all__ = ["KINDS", "Document", "Kind", "SourceSpec", "kind_of", "parse_source", "read", "units"]


class Kind(Protocol):
    """What a module of this package offers."""

    RULES: tuple[Rule, ...]
    CUT_BECAUSE: str

    def units(self, spec: SourceSpec) -> list[Path]: ...
    def read(self, spec: SourceSpec, path: Path) -> Iterator[Document]: ...


KINDS: dict[str, Kind] = {
    "wikiextractor": cast(Kind, wikiextractor),
    "books": cast(Kind, books),
    "lines": cast(Kind, lines),
    "python": cast(Kind, python_docs),
}


def kind_of(spec: SourceSpec) -> Kind:
    """The module that reads this source; UserError, naming the nearest kind, if there is none."""
    if spec.kind not in KINDS:
        near = difflib.get_close_matches(spec.kind, KINDS, 1, 0.0)
        raise UserError(
            f"source kind {spec.kind!r} is unknown; did you mean {near[0]!r}? "
            f"(there are {', '.join(KINDS)})"
        )
    return KINDS[spec.kind]


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
            near = difflib.get_close_matches(key, values, 1, 0.0)
            raise UserError(f"--source={text}: no option {key!r}; did you mean {near[0]!r}?")
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


def units(spec: SourceSpec) -> list[Path]:
    """The files of a source, sorted. UserError if there are none."""
    return kind_of(spec).units(spec)


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """The documents of one of its files, in order, raw."""
    return kind_of(spec).read(spec, path)
