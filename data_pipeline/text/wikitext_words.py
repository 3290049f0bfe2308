"""The words that decide which parts of wikitext are text (see `wikitext`), read from the table of
this name, wikitext_words.toml. To add a language, write a table `languages.CODE` there.

Names are in lower case, with spaces for underscores; one that ends in `*` stands for all names that
begin so, one that begins with `*` for all that end so. A pattern is what a template leaves in the
text: `{1}` is its first unnamed argument, `{-1}` the last, `{*}` all of them joined, `{text|1}` the
first of these that is not empty. A tuple has the patterns for one, two, … unnamed arguments.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Pattern = str | tuple[str, ...]


@dataclass(frozen=True)
class LanguageWords:
    """Words of one language's Wikipedia for parts of a page that are not text."""

    closing: frozenset[str]  # headings of sections at the end of an article, and parts of them
    joiners: frozenset[str]  # words that join such parts: "Notes and references"
    disambiguation: frozenset[str]  # templates of pages that only list articles
    files: frozenset[str]  # names of the namespace of files, old ones included
    categories: frozenset[str]


def _words(text: str) -> frozenset[str]:
    """Splits at commas and line ends."""
    return frozenset(word.strip() for line in text.strip().split("\n") for word in line.split(","))


_TABLE: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
DROPPED_EXTENSIONS: Final = _words(_TABLE["tags"]["extensions"])
DROPPED_TAGS: Final = _words(_TABLE["tags"]["others"])
DROPPED_TEMPLATES: Final = frozenset().union(*map(_words, _TABLE["dropped_templates"].values()))
IMAGE_OPTIONS: Final = _words(_TABLE["image"]["options"])
IMAGE_KEYS: Final = _words(_TABLE["image"]["keys"])
BY_LANGUAGE: Final = {
    language: LanguageWords(**{name: _words(text) for name, text in texts.items()})
    for language, texts in _TABLE["languages"].items()
}

# Patterns that are no text, see the table.
CONVERT: Final = "convert"
AS_OF: Final = "as of"
AFTER_COLON: Final = ":"

KEPT_TEMPLATES: Final[dict[str, Pattern]] = {
    name: tuple(row["leaves"]) if isinstance(row["leaves"], list) else row["leaves"]
    for row in _TABLE["kept_templates"]
    for name in _words(row["names"])
}
