"""Source kind `wikiextractor`: the output of github.com/attardi/wikiextractor.

A file, or a folder tree of `wiki_NN` files, also compressed. Two formats: plain blocks

    <doc id="25" url="https://…" title="Autism">
    Autism

    Autism is a …
    </doc>

and, with `--json`, one object per line with "title" and "text". Versions differ in the attributes
of <doc>, and write marks of their own with --links, --html, --sections and --lists. Each article is
a document, each line a paragraph. The cleaning rules remove leftovers of markup and templates.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.sources import finding, formats
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.kind import Kind
from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.data_pipeline.sources.wikiextractor_rules import RULES
from bert_jax.errors import UserError
from bert_jax.storage import json_record

_HEADER = r'<(?i:doc)(?P<attributes>\s+[\w:.-]+="[^\n]*")\s*>'
_OPEN = re.compile(rf"{_HEADER}\s*")
# A title may have quotation marks, and other attributes after it.
_TITLE = re.compile(r'\stitle="(.{0,1000}?)"(?=(?:\s+[\w:.-]+="[^"]*")*+$)')
# A header at the start of a line; within one it needs two attributes, or the end of a block before
# it: a text may quote an element.
_ANOTHER = re.compile(
    rf'\s*{_HEADER}|.*?<(?i:doc)(?:\s+[\w:.-]+="[^"\n]*"){{2}}|.*?</(?i:doc)>.*<(?i:doc)\s'
)
_CLOSE = "</doc>"
_NAME = re.compile(r"wiki_\d+(\.bz2|\.gz|\.xz|\.zst)?")


def find(spec: SourceSpec) -> Found:
    """Returns the `wiki_NN` files of the source; a file given directly may have any name."""
    described = "WikiExtractor's wiki_NN"
    return finding.find(spec, lambda path: bool(_NAME.fullmatch(path.name)), described, text=False)


def _is_extracted(path: Path) -> bool:
    """Returns whether a file starts like WikiExtractor's output."""
    first = _first_line(path)
    return bool(_OPEN.fullmatch(first)) or {"title", "text"} <= _object(first).keys()


def _first_line(path: Path) -> str:
    return next((line for line in lines(path) if line.strip()), "")


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the articles of one file, in either format; UserError for text outside `<doc>` blocks,
    a block that is not closed before the next or invalid JSON."""
    path = part.path
    is_json = _first_line(path).lstrip().startswith("{")
    yield from _json_articles(path) if is_json else _plain_articles(path)


def _plain_articles(path: Path) -> Iterator[Document]:
    title, first = "", 0  # of the article that is read, and its line
    text: list[str] = []
    for number, line in enumerate(lines(path), 1):
        if not first:
            if not line.strip():
                continue
            if not (opened := _OPEN.fullmatch(line)):
                raise UserError(
                    f"{path}: line {number} is not in a <doc …> block of WikiExtractor's output; "
                    "for plain text pass --source=books or --source=lines"
                )
            title, first = _title(opened), number
            continue
        if "<doc" in line.lower() and _ANOTHER.match(line):
            raise UserError(
                f"{path}: line {number} begins an article inside {title!r} of line {first}, which "
                f"no {_CLOSE} ends; extract or copy it again"
            )
        ended = line.rstrip()
        if not ended.lower().endswith(_CLOSE):
            text.append(line)
            continue
        if last := ended[: -len(_CLOSE)].rstrip():
            text.append(last)
        yield Document("\n".join(text), title)
        first, text = 0, []
    if first:
        raise UserError(
            f"{path}: ends inside article {title!r} of line {first}; extract or copy it again"
        )


def _title(opened: re.Match[str]) -> str:
    """Returns the title of an article; "" if its first line has none."""
    found = _TITLE.search(opened["attributes"])
    return html.unescape(found[1]) if found else ""


def _json_articles(path: Path) -> Iterator[Document]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        article = _object(line)
        title, text = article.get("title"), article.get("text")
        if not (isinstance(title, str) and isinstance(text, str)):
            raise UserError(
                f'{path}: line {number} is not a JSON object with strings "title" and "text"; '
                "extract or copy it again; for other JSON pass --source=jsonl:PATH"
            )
        yield Document(text, title)


def _object(line: str) -> dict[str, Any]:
    """Parses a JSON object; returns an empty one if the line is not a JSON object."""
    try:
        return json_record.parse_object(line)
    except ValueError:
        return {}


KIND: Final = Kind(
    find,
    read,
    rules=RULES,
    begins=_is_extracted,
    formats=(formats.EXTRACTED, formats.JSON, formats.TEXT),
    described="WikiExtractor output",
)
