"""The input and output types of every kind of source."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SourceSpec:
    """One source of text, as given on the command line."""

    kind: str  # a key of bert_jax.data_pipeline.sources.KINDS
    path: Path  # file or folder, local or in a bucket; or the name of a dataset on the hub
    name: str  # used in the manifest and in metric names
    language: str = "en"  # ISO 639 code, for the sentence splitter
    document_lines: int = 200  # document length where the text has no boundaries
    packages: tuple[str, ...] = ()  # Python packages to read besides `path`, for the kind `python`
    text: str = "text"  # the column of the text, where a document is a row
    title: str = ""  # the column of its title; "": it has none
    columns: tuple[str, ...] = ()  # names of the columns of a file without a header
    split: str = "train"  # of a dataset
    allow_partial: bool = False  # take the first part of a split of which the hub has no more


@dataclass(frozen=True)
class Range:
    """A part of a file that is read independently of the rest.

    The ranges of a file are in order and together the whole file: every document begins in exactly
    one of them. Positions are the kind's own: bytes where text is cut at line ends, row groups of
    Parquet, numbers of records.
    """

    path: Path
    start: int = 0
    stop: int | None = None  # the position after the last; None: the end of the file
    bytes: int = 0  # of the file, for the progress bar and the size of shards


@dataclass(frozen=True)
class Document:
    """One raw document, neither cleaned nor split into sentences."""

    text: str  # lines; a blank line ends a paragraph where lines are wrapped
    title: str = ""  # if given outside the text
    line_paragraphs: bool = False  # every line is a paragraph, with no blank lines between
    sentences_given: bool = False  # the text already has one sentence per line
    cut: bool = False  # cut at a line count, not at a boundary in the text
    # Makes the text to be cleaned from `text`, which is raw; also counts, for the report.
    plain_text: Callable[[str], tuple[str, Counter[str]]] | None = None
    skipped: str = ""  # why it is not part of the corpus: it is only counted
