"""Splits paragraphs into sentences with Wikimedia's `sentencex` (github.com/wikimedia/sentencex).

sentencex never splits inside quotation marks or parentheses, even if they contain several
sentences. So it gets each line with these marks replaced by spaces, and its boundaries are then
moved to where the marks belong. sentencex alone decides what ends a sentence; a line without such
marks is passed unchanged.
"""

# ruff: noqa: RUF001  (quotation marks of many languages)

import importlib.metadata
import re
from collections.abc import Iterator

import sentencex

from bert_jax.data_pipeline.text.clean import OTHER_SPACES
from bert_jax.errors import UserError

_RULES = 3  # incremented when the sentences change for the same version of sentencex

# ISO 639-1, and the codes of larger Wikipedias without a two-letter code. sentencex has rules for
# about thirty of these and falls back to related languages' rules, finally English, for the others;
# it silently does so for a misspelled code too, hence this list.
_CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu
lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu
rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr
ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu arz ast azb bar ceb fil lmo mai min nan
nds new pms sco scn simple szl vec war wuu yue
"""
LANGUAGES = frozenset(_CODES.split())

_OPENING = "([{“„‟‘‚‛«‹「『《〈【〔（［｛〝"
_CLOSING = ")]}”’»›」』》〉】〕）］｝〞〟"
MARKS = _OPENING + _CLOSING + "\"'`´＂＇"  # quotation marks and brackets
_MARKS = re.escape(MARKS)
# Marks that end a sentence, in the scripts that Unicode gives them (Sentence_Terminal) and that are
# common: full-width, Arabic, Armenian, Devanagari, Burmese, Ethiopic, Khmer, Tibetan and others.
_ENDS = ".!?…‼⁇⁈⁉。．｡！？｡։؟۔।॥။၊።፧៖។៕༎᠃᠉"
# Characters to replace with a space: marks, except apostrophes within words and the brackets of a
# reference ("so.[12] Then"); and other whitespace, at which sentencex panics ("A\u00a0.").
_HIDDEN = re.compile(
    rf"[{_MARKS}{OTHER_SPACES}](?:(?<!['’\[\]])|(?<=['’])(?:(?<!\w.)|(?!\w))"
    r"|(?<=\[)(?!\d+\])|(?<=\])(?<!\d\]))"
)
# Marks before a period count as a word: in '(1.2 m). Then' sentencex would otherwise see "m. Then".
# Tried from their first on: each of a million would take a million steps.
_BEFORE_END = re.compile(rf"[{_MARKS}](?<![{_MARKS}].)[{_MARKS}]*+(?=[{_ENDS}])(?<!\d\])")
# A title or a note between marks, short and without an end of its own, is not split:
# "Help! I Need Somebody", (vol. II).
_TITLE = re.compile(r"""["“(](?!\s)[^"“”()\n]{1,58}\w["”)](?!\w)""")
_END = re.compile(f"[{_ENDS}]")
_LETTER = re.compile(r"[\W_]{0,40}([^\W_])")


def splitter() -> dict[str, str]:
    """Describes the sentence splitter, for a store's manifest and a build's digest."""
    version = importlib.metadata.version("sentencex")
    return {"name": "sentencex", "version": version, "rules": str(_RULES)}


def check_language(language: str) -> None:
    """Raises UserError for an unknown language code, suggesting a similar one."""
    if language not in LANGUAGES:
        near = language.lower()[:2]
        near = near if near in LANGUAGES else "en"
        raise UserError(f"language {language!r} is unknown; use an ISO 639 code such as {near!r}")


def split(text: str, language: str) -> list[str]:
    """Returns the sentences of a text with one paragraph per line, stripped and non-empty. Raises
    UserError for an unknown language."""
    check_language(language)
    pieces = (piece.strip() for line in cut(text, language) for piece in line)
    return [piece for piece in pieces if piece]


def cut(text: str, language: str) -> Iterator[list[str]]:
    """Yields the sentences of each line, with trailing spaces; joined, they give the line again.
    `language`: one of `LANGUAGES`."""
    hidden = _hide(text)
    for line, masked in zip(text.split("\n"), hidden.split("\n"), strict=True):
        ends = _ends(line, masked, language)
        yield [line[a:b] for a, b in zip([0, *ends], [*ends, len(line)], strict=True)]


def _hide(text: str) -> str:
    """Replaces quotation marks and brackets, one character for one."""
    text = _TITLE.sub(lambda title: _END.sub("_", title[0]), text)
    return _HIDDEN.sub(" ", _BEFORE_END.sub(_filled, text))


def _filled(marks: re.Match[str]) -> str:
    before = marks.string[marks.start() - 1 : marks.start()]
    return (before if before and before in _ENDS else "_") * len(marks[0])


def _ends(line: str, masked: str, language: str) -> list[int]:
    """Returns the ends of all sentences of a line but the last, trailing spaces included."""
    ends = [0]
    at = 0
    for piece in sentencex.segment(language, masked)[:-1]:
        solid = at + len(piece.rstrip())
        at += len(piece)
        # "asyncio.CancelledError" is one word, but sentencex ends a sentence at its dot.
        if solid == at and line[at - 1] == "." and line[at].isalpha():
            continue
        gap = line[solid:at]
        if gap.isspace() or not gap:
            ends.append(at)
            continue
        end = solid + _closing(line, solid, at)
        if not _LETTER.match(line, ends[-1], end):
            continue
        letter = _LETTER.match(line, end)
        # "Come!" he said: lowercase text after a closing mark continues the sentence.
        if letter and not (end > solid and (letter[1].islower() or letter[1].isdigit())):
            ends.append(end)
    return ends[1:]


def _closing(line: str, start: int, stop: int) -> int:
    """Returns how much of line[start:stop] (spaces and marks) belongs to the sentence before.

    Closing marks do, opening marks do not. A mark next to a word on one side only is classified by
    that side; others by their type, and a straight quotation mark by the number before it.
    """
    for at in range(start, stop):
        mark = line[at]
        if mark.isspace():
            continue
        spaced = at > start and line[at - 1].isspace()
        is_opening = spaced
        if spaced == line[at + 1 : at + 2].isspace():
            is_opening = mark in _OPENING or (mark == '"' and line.count(mark, 0, at) % 2 == 0)
        if is_opening:
            return at - start
    return stop - start
