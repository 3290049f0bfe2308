"""Text cleaning: named rules, applied in order, each counting how often it fired.

Each source kind lists the rules for its own residue next to its reader; the rules here apply to all
kinds: entities and control characters before those rules, lines without words after them. The
result has one paragraph per line, with words separated by single spaces.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.entities import html5


@dataclass(frozen=True)
class Rule:
    """A cleaning rule: a name for the counts, and a function text -> (text, times fired)."""

    name: str
    apply: Callable[[str], tuple[str, int]]


def replace(
    name: str,
    pattern: str,
    replacement: str | Callable[[re.Match[str]], str] = "",
    *,
    needles: Sequence[str] = (),
    within: str = "",
    in_line: bool = False,
) -> Rule:
    """Returns a rule that substitutes a pattern (^ and $ match at line boundaries).

    Texts that cannot have a match are not searched, so that most rules cost nothing for most texts.

    Args:
        needles: strings of which every match contains at least one.
        within: a faster pattern, a match of which is in every match.
        in_line: look for matches within lines, and only in those that may have one.
    """
    compiled = re.compile(pattern, re.MULTILINE)
    faster = re.compile(within, re.MULTILINE)

    def apply(text: str) -> tuple[str, int]:
        if needles and not any(_contains(text, needle) for needle in needles):
            return text, 0
        if within and not faster.search(text):
            return text, 0
        if not in_line:
            return compiled.subn(replacement, text)
        lines, total = text.split("\n"), 0
        for i, line in enumerate(lines):
            if any(needle in line for needle in needles) and faster.search(line):
                lines[i], count = compiled.subn(replacement, line)
                total += count
        return "\n".join(lines), total

    return Rule(name, apply)


def several(*rules: Rule) -> Rule:
    """Returns a rule that applies several of one name in turn: a pattern for each script is faster
    than one for all."""

    def apply(text: str) -> tuple[str, int]:
        total = 0
        for rule in rules:
            text, count = rule.apply(text)
            total += count
        return text, total

    return Rule(rules[0].name, apply)


def _contains(text: str, needle: str) -> bool:
    # Python finds a character ten times as fast as a string, and most needles have a rare one.
    return all(map(text.__contains__, needle)) and needle in text


def drop_lines(name: str, unwanted: Callable[[str], bool]) -> Rule:
    """Returns a rule that removes lines for which `unwanted` is true; keeps blank lines."""

    def apply(text: str) -> tuple[str, int]:
        lines = text.split("\n")
        remaining = [line for line in lines if not (line.strip() and unwanted(line.strip()))]
        return "\n".join(remaining), len(lines) - len(remaining)

    return Rule(name, apply)


def unwrap() -> Rule:
    """Returns a rule that joins the lines of a paragraph (between blank lines); counts joins."""

    def apply(text: str) -> tuple[str, int]:
        lines = "\n".join(line.strip() for line in text.split("\n"))
        paragraphs = [p for p in _BLANK_LINES.split(lines) if p]
        joined = "\n\n".join(p.replace("\n", " ") for p in paragraphs)
        return joined, sum(p.count("\n") for p in paragraphs)

    return Rule("wrapped_line", apply)


_BLANK_LINES = re.compile(r"\n\n+")
_ENTITY = re.compile(r"&(?:[A-Za-z]\w{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_MOST_ESCAPES = 100  # of one entity; a text may be nothing but "&amp;amp;amp;…"
# Invisible characters that no tokenizer's original makes anything of, and U+FFFD, the mark of
# damage. Others are left to the tokenizer: SentencePiece (nmt_nfkc) makes spaces of U+061C, U+200B,
# U+200C, U+200E, U+200F and U+FEFF, as Khmer, Lao and Burmese mean U+200B; BERT's WordPiece deletes
# them. U+200C and U+200D are part of Persian and Indic spelling.
_INVISIBLE = "\u00ad\u180e\u202a-\u202e\u2060-\u2069\ufff9-\ufffd"
_WITHOUT_WORDS = re.compile(r"(?:\W|_)+")
# All whitespace except the space and the line break; faster to find than r"[^\S\n ]".
OTHER_SPACES = r"\t\v\f\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_OTHER_SPACE = re.compile(f"[{OTHER_SPACES}]")


def _entities(text: str) -> tuple[str, int]:
    count = 0
    for _ in range(_MOST_ESCAPES):  # WikiExtractor escapes existing entities: &amp;nbsp;
        if "&" not in text:
            break
        found = sum(_character(entity) != entity for entity in _ENTITY.findall(text))
        if not found:
            break
        text, count = _ENTITY.sub(lambda match: _character(match[0]), text), count + found
    return text, count


def _character(entity: str) -> str:
    """Returns the character of an entity; what is none, such as "&region;", stays, of which
    `html.unescape` makes "®ion;"."""
    is_number = entity.startswith("&#")
    return html.unescape(entity) if is_number else html5.get(entity[1:], entity)


def _empty_lines_without_words(text: str) -> tuple[str, int]:
    lines, count = text.split("\n"), 0
    for i, line in enumerate(lines):
        if not line[:1].isalnum() and _WITHOUT_WORDS.fullmatch(line) and line.strip():
            lines[i] = ""
            count += 1
    return "\n".join(lines) if count else text, count


BEFORE: tuple[Rule, ...] = (
    Rule("entity", _entities),
    replace("control_character", r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", " "),
    replace("invisible_character", f"[{_INVISIBLE}]", ""),
)
AFTER: tuple[Rule, ...] = (Rule("line_without_words", _empty_lines_without_words),)


def clean(
    text: str,
    rules: Sequence[Rule] = (),
    *,
    title: str = "",
    line_paragraphs: bool = False,
    sentences_given: bool = False,
    taken: Counter[str] | None = None,
) -> tuple[str, Counter[str]]:
    """Returns the text with one paragraph (or given sentence) per line and no blank lines, and a
    mapping rule name -> count.

    Args:
        rules: the rules of its source kind.
        title: the document's title; a first line that repeats it is removed.
        line_paragraphs: every line is a paragraph; lines are not joined.
        sentences_given: the text has one sentence per line; lines are neither joined nor dropped.
        taken: the characters that each rule removes are added to it.
    """
    counts: Counter[str] = Counter()
    if title:
        head, _, rest = text.lstrip().partition("\n")
        if head.strip() == title.strip():
            text = rest
            counts["repeated_title"] = 1
    if line_paragraphs:
        text = text.replace("\n", "\n\n")
    for rule in BEFORE if sentences_given else (*BEFORE, *rules, *AFTER):
        before = len(text)
        text, fired = rule.apply(text)
        if fired:
            counts[rule.name] += fired
            if taken is not None and len(text) < before:
                taken[rule.name] += before - len(text)
    # Runs of whitespace, no-break spaces included, become one space; too common to count.
    return "\n".join(filter(None, map(_single_spaced, text.split("\n")))), counts


def _single_spaced(line: str) -> str:
    line = line.strip()
    return " ".join(line.split()) if "  " in line or _OTHER_SPACE.search(line) else line
