"""A kind of source: three functions, and facts about its files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.sources.cutting import whole_file
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import Format
from bert_jax.data_pipeline.text.clean import Rule
from bert_jax.errors import UserError


@dataclass(frozen=True)
class Option:
    """An option of a source on the command line, such as `,lines=100`.

    Attributes:
        field: of `SourceSpec`.
        shown: its value in the help.
        parse: the value of a text; UserError if it has none.
    """

    name: str
    field: str
    shown: str
    parse: Callable[[str], Any] = str


_DIGITS: Final = 10  # of a number of lines, fewer


def _lines(text: str) -> int:
    if not (text.isdecimal() and len(text) < _DIGITS and int(text) > 0):
        raise UserError(f"lines={text} must be a positive integer")
    return int(text)


def _column(text: str) -> str:
    if not text:
        raise UserError("text= needs the name of a column")
    return text


def _several(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split("+") if part)


LINES: Final = Option("lines", "document_lines", "N", _lines)
TEXT: Final = Option("text", "text", "COLUMN", _column)
TITLE: Final = Option("title", "title", "COLUMN")
COLUMNS: Final = Option("columns", "columns", "NAME+NAME", _several)
SPLIT: Final = Option("split", "split", "NAME")
PACKAGES: Final = Option("packages", "packages", "NAME+NAME", _several)


@dataclass(frozen=True)
class Kind:
    """A kind of source.

    Attributes:
        find: the files at a source's path; see `finding.find`.
        read: the raw documents of a range of a file, in order.
        ranges: of a file, in order; they depend on its content and the `SourceSpec` alone.
        rules: for cleaning.
        options: on the command line, besides name and lang.
        locate: (path, data_dir) -> the path that is meant by what is typed after `KIND:`; "" if
            there has to be one.
        default_name: of a source, from the path that `locate` returns; "": the kind.
        form: what is typed after `KIND:`.
        extensions: of its files: one with such a name is guessed to be of this kind.
        begins: whether a file of text begins like one of this kind, whatever its name.
        marks: names of files that only folders of this kind have.
        plain_text: whether its files are; if so, those of other formats are rejected.
        markup: whether these include markup and JSON.
        formats: its own, if errors of reading name the kind that a file of another one looks like.
        described: its files, in words; required with `formats`.
        libraries: packages whose version decides what is read.
        packages: others that workers on other machines install.
        cut_because: why its documents may be cut at a line count.
        cut_remedy: how to avoid it.
    """

    find: Callable[[SourceSpec], Found]
    read: Callable[[SourceSpec, Range], Iterator[Document]]
    ranges: Callable[[SourceSpec, Path], Iterator[Range]] = whole_file
    rules: tuple[Rule, ...] = ()
    options: tuple[Option, ...] = ()
    locate: Callable[[str, str], str] = lambda path, data_dir: path
    default_name: Callable[[str], str] = lambda path: ""
    form: str = "/path/to/text"
    extensions: tuple[str, ...] = ()
    begins: Callable[[Path], bool] | None = None
    marks: tuple[str, ...] = ()
    plain_text: bool = True
    markup: bool = False
    formats: tuple[Format, ...] = ()
    described: str = ""
    libraries: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    cut_because: str = ""
    cut_remedy: str = ""
