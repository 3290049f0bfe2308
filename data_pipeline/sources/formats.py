"""Detects a file's format from its name and first bytes, with a remedy for what is not plain text.

Where the name is not conclusive the bytes decide: a zip archive named book.txt is not read as text.
"""

from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.errors import UserError

HEAD: Final = 4096  # bytes that are inspected
COMPRESSED: Final = (".bz2", ".gz", ".xz", ".zst")  # decompressed on the fly
_FEWEST_ROWS: Final = 3  # lines with equally many tabs that make a table
_MOST_ZEROS: Final = 0.25  # share of zero bytes in text; UTF-16 has half


class Format(NamedTuple):
    """A format that is not plain text, and what to do with it."""

    name: str
    remedy: str


_AS_ROWS = "write its rows to a .jsonl file and pass --source=jsonl:PATH"
DUMP = Format("a Wikipedia dump", "pass --source=dump:PATH")
_UNPACK = "unpack it and pass the folder"
_PANDOC = "convert it to text, for example with pandoc -t plain"
JSON = Format("JSON", "pass --source=jsonl:PATH if it has an object per line")
TABLE = Format("a table", "pass --source=csv:PATH")
_SPREADSHEET = Format("a spreadsheet", "save it as CSV and pass --source=csv:PATH")
PARQUET = Format("Parquet", "pass --source=parquet:PATH")
ARROW = Format("Arrow", "pass --source=arrow:PATH")
_COLUMNS = Format("a columnar file", _AS_ROWS)
_DATABASE = Format("a database", _AS_ROWS)
_TFDS = "pass --source=tfds:NAME or the dataset's folder"
XML = Format("XML", f"if it is a Wikipedia dump, {DUMP.remedy}; else {_PANDOC}")
_HTML = Format("HTML", _PANDOC)
_EPUB = Format("an epub book", _PANDOC)
_OFFICE = Format("a word processor document", _PANDOC)
_PDF = Format("a PDF", "convert it to text, for example with pdftotext")
_ARCHIVE = Format("an archive", _UNPACK)
_UTF16 = Format(
    "UTF-16 text", "convert it, for example with iconv -f UTF-16 -t UTF-8 OLD.txt > NEW.txt"
)
_BINARY = Format("binary data", "leave it out")
EXTRACTED = Format("WikiExtractor output", "pass --source=wikiextractor:PATH")
TEXT = Format(
    "plain text",
    "pass --source=books (one text per file) or --source=lines (one sentence per line)",
)

_BY_EXTENSION: Final[dict[str, Format]] = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), JSON),
    **dict.fromkeys((".csv", ".tsv"), TABLE),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), _SPREADSHEET),
    ".parquet": PARQUET,
    **dict.fromkeys((".arrow", ".feather"), ARROW),
    **dict.fromkeys((".orc", ".avro"), _COLUMNS),
    **dict.fromkeys((".sqlite", ".sqlite3", ".db", ".duckdb"), _DATABASE),
    ".xml": XML,
    **dict.fromkeys((".html", ".htm", ".xhtml"), _HTML),
    ".epub": _EPUB,
    **dict.fromkeys((".doc", ".docx", ".odt", ".rtf"), _OFFICE),
    ".pdf": _PDF,
    **dict.fromkeys((".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar"), _ARCHIVE),
}
_BY_MAGIC: Final[tuple[tuple[bytes, Format], ...]] = (
    (b"PK\x03\x04", _ARCHIVE),
    (b"PK\x05\x06", _ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", _ARCHIVE),
    (b"Rar!\x1a\x07", _ARCHIVE),
    (b"PAR1", PARQUET),
    (b"ARROW1\0", ARROW),
    (b"\xff\xff\xff\xff", ARROW),  # a stream
    (b"SQLite format 3\0", _DATABASE),
    (b"%PDF-", _PDF),
    (b"{\\rtf", _OFFICE),
    (b"\xff\xfe", _UTF16),
    (b"\xfe\xff", _UTF16),
    *(
        (magic, Format(f"compressed, but not named {end}", f"rename it to NAME{end}"))
        for magic, end in (
            (b"\x1f\x8b", ".gz"),
            (b"BZh", ".bz2"),
            (b"\xfd7zXZ\0", ".xz"),
            (b"\x28\xb5\x2f\xfd", ".zst"),
        )
    ),
)
_BY_MARKUP: Final[tuple[tuple[bytes, Format], ...]] = (
    (b"<?xml", XML),
    (b"<!doctype html", _HTML),
    (b"<html", _HTML),
)
# Remedies for source kinds that users may try.
_BY_KIND: Final[dict[str, str]] = {
    **dict.fromkeys(("json", "ndjson"), "pass --source=jsonl:PATH"),
    "tsv": TABLE.remedy,
    **dict.fromkeys(("xls", "xlsx"), _SPREADSHEET.remedy),
    **dict.fromkeys(("orc", "avro", "sqlite"), _AS_ROWS),
    **dict.fromkeys(
        ("huggingface", "hub", "dataset", "datasets"),
        "pass --source=hf:OWNER/NAME, or save the dataset with save_to_disk and pass "
        "--source=arrow:FOLDER (docs/data.md, Rows and datasets)",
    ),
    **dict.fromkeys(("tensorflow_datasets", "array_record"), _TFDS),
    **dict.fromkeys(("wiki", "wikipedia", "xml", "mediawiki"), DUMP.remedy),
    **dict.fromkeys(("html", "epub", "docx"), _PANDOC),
    "pdf": _PDF.remedy,
    **dict.fromkeys(("zip", "tar"), _UNPACK),
    **dict.fromkeys(("text", "txt", "file", "folder"), TEXT.remedy),
}


def extension(path: Path) -> str:
    """Returns a lower-case extension: ".txt" for "A.TXT" and "a.txt.gz", "" for "README"."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def remedy_of_kind(kind: str) -> str:
    """Returns the remedy for an unknown source kind; "" if no remedy is known."""
    return _BY_KIND.get(kind.lower(), "")


def format_of_name(path: Path) -> Format | None:
    """Returns the format of a file's extension, None for text and for unknown extensions."""
    return _BY_EXTENSION.get(extension(path))


def format_of_start(head: bytes, *, markup: bool) -> Format | None:
    """Returns the format of a file from its first `HEAD` bytes, None if it may be text. `markup`:
    also detect markup and JSON, which consist of characters but are not plain text."""
    form = next((form for magic, form in _BY_MAGIC if head.startswith(magic)), None)
    if form is _ARCHIVE and b"mimetypeapplication/epub" in head:
        return _EPUB
    if form or head[257:262] == b"ustar":
        return form or _ARCHIVE
    if head.count(0) > _MOST_ZEROS * len(head):
        return _UTF16 if 0.4 * len(head) <= head.count(0) <= 0.6 * len(head) else _BINARY
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if b"<mediawiki" in start and start.startswith(b"<"):
        return DUMP
    if not markup:
        return None
    if start.startswith(b"<doc id="):
        return EXTRACTED
    if start.startswith(b"{") and start[1:].lstrip().startswith((b'"', b"}")):
        return JSON
    if start.startswith(b"[") and start[1:].lstrip().startswith(b"{"):
        return JSON
    if _has_columns(head):
        return TABLE
    return next((form for begin, form in _BY_MARKUP if start.startswith(begin)), None)


def _has_columns(head: bytes) -> bool:
    """Returns whether all complete lines have the same number of tabs, those of an indent not
    counted."""
    lines = [line.strip() for line in head.split(b"\n")[:-1]]
    tabs = {line.count(b"\t") for line in lines if line}
    return len(list(filter(None, lines))) >= _FEWEST_ROWS and len(tabs) == 1 and tabs != {0}


def refuse(path: Path, form: Format | None, wanted: str) -> None:
    """Raises UserError, with the remedy, if a file has a format that is not `wanted`."""
    if form:
        raise UserError(f"{path}: {form.name}, not {wanted}; {form.remedy}")
