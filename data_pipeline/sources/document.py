"""What every kind of source takes and gives."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SourceSpec:
    """One source of text, as a user names it."""

    kind: str  # a key of bert_jax.data_pipeline.sources.KINDS
    path: Path  # file or folder
    name: str  # in the manifest and in metric names
    language: str = "en"  # ISO 639 code, for the sentence splitter
    document_lines: int = 200  # length of a document where the text marks no boundaries


@dataclass(frozen=True)
class Document:
    """One document, raw: nothing cleaned, nothing split."""

    id: str  # file name and position in it, for messages
    source: str  # SourceSpec.name
    language: str
    text: str  # lines; a blank line ends a paragraph where lines are wrapped
    title: str = ""  # stated outside the text, if at all
    line_paragraphs: bool = False  # every line is a paragraph, without blank lines between
    sentences_given: bool = False  # the text has one sentence a line already
    cut: bool = False  # ended by a line count, not by a boundary in the text
