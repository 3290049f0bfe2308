"""Source kind `wikiextractor`: the output of github.com/attardi/wikiextractor.

A file, or a folder tree of `wiki_NN` files, also compressed. Two formats: plain blocks

    <doc id="25" url="https://…" title="Autism">
    Autism

    Autism is a …
    </doc>

and, with `--json`, one object per line with "title" and "text". Each article is a document, each
line a paragraph. The cleaning rules remove leftovers of markup and templates.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources import finding
from bert_jax.data_pipeline.sources.cutting import whole_file
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.data_pipeline.text.clean import Rule, drop_lines, replace

PLAIN_TEXT = True
MARKUP = False
OPTIONS: tuple[str, ...] = ()
LIBRARIES: tuple[str, ...] = ()
CUT_BECAUSE = CUT_REMEDY = ""
_OPEN = re.compile(r'<doc id="[^"]*".*? title="(?P<title>.*)">$')
_NAME = re.compile(r"wiki_\d+(\.bz2|\.gz|\.xz|\.zst)?")

_KNOWN_TAGS = (
    "b|big|blockquote|center|cite|code|del|div|em|font|gallery|h[1-6]|i|includeonly|ins|kbd|"
    "li|mapframe|math|noinclude|nowiki|ol|onlyinclude|poem|pre|q|ref|references|ruby|rt|s|samp|"
    "score|section|small|span|strike|strong|sub|sup|syntaxhighlight|table|td|templatestyles|th|"
    "timeline|tr|tt|u|ul|var|wbr"
)
_HEADING_WORDS = 5
_HEADING_CHARACTERS = 60


def _is_heading(line: str) -> bool:
    """Returns whether a line is short and unpunctuated: a section title or a stray list item."""
    if len(line) > _HEADING_CHARACTERS or len(line.split()) > _HEADING_WORDS:
        return False
    bare = line.rstrip(" )]\"'\u201d\u2019\u00bb")
    return bool(bare) and bare[-1].isalnum()


# Each takes linear time: a run of characters is tried where it begins, not again at each of them.
RULES: tuple[Rule, ...] = (
    # Elements whose content is not text. A reference may end in "</>" after extraction.
    replace(
        "element",
        r"<(math|score|timeline|gallery|chem|ce|hiero|syntaxhighlight|ref)\b[^<>]*(?:/>|>[^<>]*</(?:\1)?>)",
        "",
        needles=("</", "/>"),
    ),
    replace("line_break", r"</?(?:br|hr|p)\b[^<>\n]*>", " ", needles=("<",), ignore_case=True),
    replace("tag", rf"</?(?:{_KNOWN_TAGS})\b[^<>\n]*>", "", needles=("<",), ignore_case=True),
    replace("formula", r"\b(?:formula|codice)_\d+\b", "", needles=("formula_", "codice_")),
    replace(
        "table_markup",
        r"^(?:\||\{\||![^\n]*(?:\||(?:span|scope|style|class|align|width)=))[^\n]*$",
        "",
        needles=("|",),
    ),
    replace(
        "image_options",
        r"(?:\[\[)?(?:(?:File|Image):[^|\]\n]{1,255}\|)?"  # MediaWiki's longest title
        r"(?:\b(?:thumb(?:nail)?|frame(?:less)?|left|right|center|upright(?:=[\d.]+)?|\d+px)\|)+",
        "",
        needles=("|",),
    ),
    replace("category", r"\[\[(?:Category|File|Image):[^\[\]|\n]*\]\]", "", needles=("[[",)),
    replace("link", r"\[\[(?:[^\[\]|\n]*\|)?([^\[\]|\n]*)\]\]", r"\1", needles=("[[",)),
    replace("stray_markup", r"\[\[|\]\]|\{\{|\}\}", "", needles=("[[", "]]", "{{", "}}")),
    # Left by dropped templates and IPA transcriptions: "Archimedes (; ; ) was".
    replace("empty_parentheses", r'\([\s;,:"/\u2013]*\)', "", needles=("(",)),
    replace("parenthesis_start", r"\(\s*[;,:][\s;,:]*", "(", needles=("(",)),
    replace(
        "parenthesis_end",
        r"(?<![\s;,])\s*[;,][\s;,]*\)",
        ")",
        needles=(",)", ";)", ", )", "; )"),
    ),
    replace("empty_quotes", r'""(?<=\s"")(?=[\s.,;:)])', "", needles=('""',)),
    replace("doubled_quotes", r'""', '"', needles=('""',)),
    replace("repeated_commas", r",(?:\s*,)+", ",", needles=(", ,", ",,")),
    replace("space_before_mark", r" (?<!  ) *([.,;])(?=\s|$)", r"\1", within=r" [.,;](?=\s|$)"),
    replace("list_marker", r"^[*#:;•·]+\s+(?=\S)", "", needles=("*", "#", ":", ";", "•", "·")),
    drop_lines("heading", _is_heading),
)


def find(spec: SourceSpec) -> Found:
    """Returns the `wiki_NN` files of the source; a file given directly may have any name."""
    described = "WikiExtractor's wiki_NN"
    return finding.find(spec, lambda path: bool(_NAME.fullmatch(path.name)), described, text=False)


def is_extracted(path: Path) -> bool:
    """Returns whether a file starts like WikiExtractor's output."""
    first = _first_line(path)
    return bool(_OPEN.match(first)) or {"title", "text"} <= _object(first).keys()


def _first_line(path: Path) -> str:
    return next((line for line in lines(path) if line.strip()), "")


ranges = whole_file  # its files are small


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the articles of one file, in either format; UserError for text outside `<doc>` blocks,
    an unclosed block or invalid JSON."""
    path = part.path
    is_json = _first_line(path).lstrip().startswith("{")
    yield from _json_articles(path) if is_json else _plain_articles(path)


def _plain_articles(path: Path) -> Iterator[Document]:
    opened: re.Match[str] | None = None
    text: list[str] = []
    for number, line in enumerate(lines(path), 1):
        if opened is not None:
            if line != "</doc>":
                text.append(line)
                continue
            yield Document("\n".join(text), html.unescape(opened["title"]))
            opened, text = None, []
        elif line.strip():
            opened = _OPEN.match(line)
            if opened is None:
                raise UserError(
                    f"{path}: line {number} is not in a <doc …> block of WikiExtractor's output; "
                    "for plain text pass --source=books or --source=lines"
                )
    if opened is not None:
        raise UserError(
            f"{path}: ends inside article {opened['title']!r}; extract or copy it again"
        )


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
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
