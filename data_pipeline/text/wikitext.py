"""The text of an article in wikitext: a walk over the nodes of `mwparserfromhell`.

The words in `wikitext_words` decide what is text. Templates are not expanded: common inline ones
leave an argument, all others leave nothing. The result has one paragraph per line. The rules of
`sources.wikiextractor` then remove what such gaps leave, such as empty parentheses.
"""

# ruff: noqa: RUF001  (signs between numbers)

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from bert_jax.data_pipeline.text.apostrophes import BARRIER, quoted
from bert_jax.data_pipeline.text.sentences import LANGUAGES
from bert_jax.data_pipeline.text.wikitext_preprocess import LIST_LINE, preprocess, restore
from bert_jax.data_pipeline.text.wikitext_words import (
    AFTER_COLON,
    AS_OF,
    BY_LANGUAGE,
    CONVERT,
    DROPPED_TAGS,
    DROPPED_TEMPLATES,
    KEPT_TEMPLATES,
    LanguageWords,
    Pattern,
)
from bert_jax.errors import UserError

UNKNOWN: Final = "unknown template: "  # a count of these is named by this and the template's name
_FILES: Final = frozenset(("file", "image", "category", "media"))  # valid in every language
_JOINERS: Final = frozenset(("to", "and", "or", "by", "x", "×", "-", "–", "+", "&", "to(-)", "+/-"))
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_BLANKS: Final = re.compile(r"[_\s]+")


def words_of(language: str) -> LanguageWords:
    """Returns the words of a language's Wikipedia, those of English if there are none."""
    return BY_LANGUAGE.get(language, BY_LANGUAGE["en"])


def is_disambiguation(wikitext: str, language: str) -> bool:
    """Returns whether a page only lists articles of similar names."""
    names = words_of(language).disambiguation | words_of("en").disambiguation
    return "__DISAMBIG__" in wikitext or bool(_template_of(names).search(wikitext))


@lru_cache(maxsize=100)
def _template_of(names: frozenset[str]) -> re.Pattern[str]:
    either = "|".join(re.escape(name).replace(r"\*", r"[^{}|]*") for name in sorted(names))
    return re.compile(rf"\{{\{{\s*(?:{either})\s*[|}}]", re.IGNORECASE)


@lru_cache(maxsize=100)
def _joint_of(joiners: frozenset[str]) -> re.Pattern[str]:
    """Matches what joins the parts of a heading; a word without case is in a script without
    blanks."""
    words = (rf"(?<!\w){w}(?!\w)" if w != w.upper() else w for w in joiners)
    return re.compile("|".join((r"[,、，・/／&＆]", *sorted(words, key=len, reverse=True))))


def plain_text(
    wikitext: str, *, language: str, files: Iterable[str] = ()
) -> tuple[str, Counter[str]]:
    """Returns the text of an article, and how often each unknown template occurs in it.

    A page with too much markup for the parser (see `preprocess`), or markup that is nested more
    deeply than Python calls functions, leaves no text; the counts say so.

    Args:
        files: names of the namespaces of files and categories in this wiki, besides the English.

    Raises:
        UserError: mwparserfromhell is not installed.
    """
    walk = _Walk(language, files)
    parser, source = _parser(), preprocess(wikitext)
    try:
        if source is None:
            raise RecursionError
        walk.add(parser.parse(source, skip_style_tags=True))
    except RecursionError:
        return "", Counter({"too_much_markup": 1})
    lines = restore("".join(walk.text)).split("\n")
    text = "\n".join(line for line in lines if LIST_LINE not in line)
    return quoted(text), walk.unknown


def check_parser() -> None:
    """Raises UserError, which says how to install it, if mwparserfromhell is missing."""
    _parser()


def _parser() -> Any:
    try:
        import mwparserfromhell
    except ImportError:
        raise UserError(
            "dumps of Wikipedia need mwparserfromhell, which is not installed; "
            "pip install 'bert-jax[dump]'"
        ) from None
    return mwparserfromhell


def _name(text: object) -> str:
    """Returns a template's, tag's or section's name as it is in the tables."""
    return _BLANKS.sub(" ", str(text).replace(BARRIER, "")).strip().lower()


class _Walk:
    """Collects the pieces of text of one article."""

    def __init__(self, language: str, files: Iterable[str]) -> None:
        words = words_of(language)
        self.text: list[str] = []
        self.unknown: Counter[str] = Counter()
        self._closing = words.closing
        self._joint = _joint_of(words.joiners)
        self._files = _FILES | words.files | words.categories | set(map(str.lower, files))
        self._skipped = 0  # level of the closing section that the walk is in

    def add(self, code: Any) -> None:
        """Adds the text of all nodes of a `Wikicode`."""
        for node in code.nodes:
            kind = type(node).__name__
            if kind == "Heading" or not self._skipped:
                _ADD[kind](self, node)

    def _skip(self, node: Any) -> None:
        pass

    def _add_source(self, node: Any) -> None:
        self.text.append(str(node))

    def _add_link(self, link: Any) -> None:
        title = str(link.title)
        prefix, colon, _ = title.partition(":")
        self.text.append(BARRIER)
        if colon and prefix.strip().lower() in self._files:
            return
        if link.text is not None:
            self.add(link.text)
        elif not (colon and prefix in LANGUAGES):  # [[de:…]]: this article in another language
            self.text.append(title.removeprefix(":"))
        self.text.append(BARRIER)

    def _add_external_link(self, link: Any) -> None:
        self.text.append(BARRIER)
        if link.title is not None:
            self.add(link.title)
            self.text.append(BARRIER)

    def _add_tag(self, tag: Any) -> None:
        # Those that are left are lines (----) and what is dropped.
        if _name(tag.tag) not in DROPPED_TAGS and tag.contents is not None:
            self.add(tag.contents)

    def _add_heading(self, heading: Any) -> None:
        if not self._skipped or heading.level <= self._skipped:
            self._skipped = heading.level if self._is_closing(heading) else 0
            self.text.append("\n")

    def _is_closing(self, heading: Any) -> bool:
        """Returns whether all parts of a heading ("Notes and references") are those of closing
        sections."""
        title = restore(_name(heading.title)).strip("':：= ")
        parts = {part.strip() for part in self._joint.split(title)} - {""}
        return bool(parts) and parts <= self._closing

    def _add_template(self, template: Any) -> None:
        name = _name(template.name)
        pattern = _pattern_of(name)
        if pattern is None:
            if not _is_dropped(name):
                self.unknown[UNKNOWN + name] += 1
            self.text.append(BARRIER)
            return
        unnamed = [p.value for p in template.params if not p.showkey]
        named = {_name(p.name): p.value for p in template.params if p.showkey}
        # {{nowrap|1=a=b}} numbers an argument, because it contains "=".
        while str(len(unnamed) + 1) in named:
            unnamed.append(named[str(len(unnamed) + 1)])
        if pattern == CONVERT:
            self.text.append(_measure([str(value).strip() for value in unnamed]))
        elif pattern == AS_OF:
            self.text.append(
                f"{'as' if 'lc' in named else 'As'} of {''.join(map(str, unnamed[:1]))}"
            )
        elif pattern == AFTER_COLON:
            self.text.append(str(template.name).partition(":")[2])
        else:
            self._add_pattern(pattern, unnamed, named)

    def _add_pattern(self, pattern: Pattern, unnamed: Sequence[Any], named: dict[str, Any]) -> None:
        if isinstance(pattern, tuple):
            pattern = pattern[max(min(len(unnamed), len(pattern)) - 1, 0)]
        for number, piece in enumerate(_FIELD.split(pattern)):
            if number % 2 == 0:
                self.text.append(piece)
                continue
            for value in _values(piece, unnamed, named):
                self.add(value)


_ADD: Final = {
    "Text": _Walk._add_source,
    "HTMLEntity": _Walk._add_source,
    "Wikilink": _Walk._add_link,
    "ExternalLink": _Walk._add_external_link,
    "Tag": _Walk._add_tag,
    "Template": _Walk._add_template,
    "Heading": _Walk._add_heading,
    "Comment": _Walk._skip,
    "Argument": _Walk._skip,  # {{{1}}}
}


def _values(field: str, unnamed: Sequence[Any], named: dict[str, Any]) -> Sequence[Any]:
    """Returns the arguments that a field of a pattern stands for."""
    for key in field.split("|"):
        if key == "*":
            return unnamed
        if key == "-1":
            return unnamed[-1:]
        found = unnamed[int(key) - 1 :][:1] if key.isdigit() else [named.get(key)]
        if found and found[0] is not None and str(found[0]).strip():
            return found
    return ()


def _measure(values: Sequence[str]) -> str:
    """Returns a quantity with its unit: 5 to 10 km of {{convert|5|to|10|km|mi}}, and 6 ft 2 in."""
    words = [*values[:1]]
    for at, value in enumerate(values[1:], 1):
        is_number = value[:1].isdigit()
        words.append(value)
        following = values[at + 1 : at + 2]
        if value in _JOINERS or is_number:
            continue
        if not (following and following[0][:1].isdigit() and values[at + 2 : at + 3]):
            break
    return " ".join(words)


@lru_cache(maxsize=10_000)
def _pattern_of(name: str) -> Pattern | None:
    """Returns the pattern of a template; None if it leaves nothing."""
    found = KEPT_TEMPLATES.get(name)
    if found is None and (key := _wildcard(name, KEPT_TEMPLATES)):
        found = KEPT_TEMPLATES[key]
    return found


@lru_cache(maxsize=10_000)
def _is_dropped(name: str) -> bool:
    return name in DROPPED_TEMPLATES or bool(_wildcard(name, DROPPED_TEMPLATES))


def _wildcard(name: str, table: Collection[str]) -> str:
    """Returns the entry with a wildcard that a name matches, "" if there is none."""
    begins = (key for key in table if key.endswith("*") and name.startswith(key[:-1]))
    ends = (key for key in table if key.startswith("*") and name.endswith(key[1:]))
    return next(chain(begins, ends), "")
