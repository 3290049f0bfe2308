"""The cleaning rules of articles: what WikiExtractor, of any version and with any of its options,
and the reader of dumps leave of markup and of dropped templates, in every language.
"""

# ruff: noqa: RUF001  (marks of many scripts)

import re
import unicodedata
from itertools import chain
from typing import Final

from bert_jax.data_pipeline.text.clean import Rule, drop_lines, replace, several
from bert_jax.data_pipeline.text.variants import choose_variants
from bert_jax.data_pipeline.text.wikitext_words import BY_LANGUAGE, IMAGE_KEYS, IMAGE_OPTIONS

_KNOWN_TAGS: Final = (
    "abbr|b|bdi|bdo|big|blockquote|caption|categorytree|center|cite|code|col|colgroup|data|dd|del|"
    "dfn|div|dl|dt|em|font|gallery|graph|h[1-6]|i|imagemap|img|includeonly|indicator|inputbox|ins|"
    "kbd|li|mapframe|maplink|mark|math|noinclude|nowiki|ol|onlyinclude|poem|pre|q|rb|ref|"
    "references|rp|rt|rtc|ruby|s|samp|score|section|small|source|span|strike|strong|sub|sup|"
    "syntaxhighlight|table|tbody|td|templatedata|templatestyles|tfoot|th|thead|time|timeline|tr|tt|"
    "u|ul|var|wbr"
)
# After the name of a tag; in "if a<b and c>d", what follows is no attribute.
_ATTRIBUTES: Final = (
    r"(?:[\s/\\]*|[\s/]+(?:[\w:.-]+\s*=|compact\b|hidden\b|inline\b|noshade\b|nowrap\b|responsive\b|"
    r"reversed\b)[^<>\n]*)>"
)
# Elements whose content is not text.
_NOT_TEXT: Final = (
    "categorytree|ce|chem|gallery|graph|hiero|imagemap|indicator|inputbox|mapframe|maplink|math|"
    "score|source|syntaxhighlight|templatedata|timeline"
)
_FILES: Final = "|".join(sorted(set(chain.from_iterable(w.files for w in BY_LANGUAGE.values()))))
_CATEGORIES: Final = "|".join(
    sorted(set(chain.from_iterable(w.categories for w in BY_LANGUAGE.values())))
)
_OPTIONS: Final = "|".join(sorted(IMAGE_OPTIONS))
_KEYS: Final = "|".join(sorted(IMAGE_KEYS))
_COMMAS: Final = ",，、،"
_SEMICOLONS: Final = ";；؛"
_COLONS: Final = ":："
_MARKS: Final = f"{_COMMAS}{_SEMICOLONS}"
# What separates or quotes the parts of a parenthesis, and remains where all of them are dropped.
_SEPARATORS: Final = (
    rf'\s{_MARKS}{_COLONS}"/／\u2013\u2014・'
    r"“”„‘’‚«»‹›「」『』\u200b-\u200f\u2060\ufeff"
)
_HEADING_WORDS: Final = 5
_HEADING_CHARACTERS: Final = 60
# Switches of a page, such as __NOTOC__, that count in small letters, too.
_SWITCHES: Final = """
notoc forcetoc toc nogallery noeditsection newsectionlink nonewsectionlink hiddencat index noindex
staticredirect nocontentconvert notitleconvert nocc notc disambig archivedtalk notalk
expectunusedcategory expectunusedtemplate expected_unconnected_page
"""
_ANY_CASE: Final = frozenset(_SWITCHES.split())
_SWITCH: Final = re.compile(r"__([^\s_]++(?:_[^\s_]++)*+)__")
# Scripts whose sentences end without a mark, or with one that may be left out; most have no blanks
# between words, either: Thai, Lao, Tibetan, Burmese, Khmer, Tai Le to Tai Tham, Balinese, Javanese,
# Cham and Tai Viet.
_WITHOUT_FULL_STOP: Final = re.compile(
    "[\u0e01-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa00-\uaadf]"
)


def _is_heading(line: str) -> bool:
    """Returns whether a line is short and unpunctuated: a section title or a stray list item."""
    if len(line) > _HEADING_CHARACTERS or len(line.split()) > _HEADING_WORDS:
        return False
    if not line.isascii() and _WITHOUT_FULL_STOP.search(line):
        return False
    if line[-1].isalnum():
        return True
    for character in reversed(line):
        kind = unicodedata.category(character)
        if kind in ("Pe", "Pf", "Pi", "Zs") or character in "\"'":  # what may close a sentence
            continue
        return kind[0] in "LMN"
    return False


def _switches(text: str) -> tuple[str, int]:
    """Removes switches of every language, as `__AUCUNSOMMAIRE__`, `__無目錄__`; not `__init__`."""
    if "_" not in text or "__" not in text:  # one character is found faster than two
        return text, 0
    count = 0

    def shown(found: re.Match[str]) -> str:
        nonlocal count
        word = found[1].replace("_", "")
        # Besides letters, words of some scripts have marks and, as in Persian, joiners.
        letters = "".join(filter(str.isalpha, word))
        if not letters.isascii() or letters != word:
            kinds = {unicodedata.category(character)[0] for character in word}
            if "L" not in kinds or not kinds <= {"L", "M", "C"}:
                return found[0]
        is_capital = len(letters) > 2 and letters.isupper()
        is_caseless = len(letters) > 1 and letters == letters.swapcase()
        if not (is_capital or is_caseless or found[1].lower() in _ANY_CASE):
            return found[0]
        count += 1
        return ""

    return _SWITCH.sub(shown, text), count


# Each takes linear time: a run of characters is tried where it begins, not again at each of them.
RULES: tuple[Rule, ...] = (
    Rule("variant", choose_variants),
    several(
        replace(
            "element",
            rf"(?i)<({_NOT_TEXT})\b[^<>]*(?:/>|>(?:[^<]|<(?!/?\1\b|/>))*+</(?:\1\s*)?>)",
            needles=("</", "/>"),
        ),
        # A reference may end in "</>" after extraction.
        replace("", r"(?i)<(ref)\b[^<>]*(?:/>|>[^<>]*</(?:\1)?>)", needles=("</", "/>")),
    ),
    # With --sections, --html, and as some versions write them.
    replace(
        "section_title",
        r"^[^\S\n]*(?:Section::::[^\n]*|(==+)[^=\n][^\n]*\1|<(h[1-6])\b[^\n]*</\2>)[^\S\n]*$",
        needles=("::::", "==", "</h"),
    ),
    replace(
        "line_break",
        rf"(?i)<(?:br|hr|p)\b{_ATTRIBUTES}|</(?:br|hr|p)\b[^<>\n]*>",
        " ",
        needles=("<",),
    ),
    # A list of --html ends its numbered items with "</<li>".
    replace(
        "tag",
        rf"(?i)(?:</)?<(?:{_KNOWN_TAGS})\b{_ATTRIBUTES}|</(?:{_KNOWN_TAGS})\b[^<>\n]*>",
        needles=("<",),
    ),
    replace(
        "anchor",
        r"(?i)<a\s+(?:href|class|id|name|title)\s*=[^<>\n]*>|</a\s*>",
        needles=("<a", "</a", "<A", "</A"),
    ),
    replace(
        "formula",
        r"(?<![A-Za-z0-9_])(?:formula|codice)_[0-9]++(?![A-Za-z_])",
        needles=("formula_", "codice_"),
    ),
    replace(
        "table_markup",
        r"^(?:\||\{\||![^\n]*(?:\||(?:span|scope|style|class|align|width)=))[^\n]*$",
        needles=("|",),
    ),
    replace(
        "image_options",
        rf"(?i)(?:\[\[)?(?:(?:{_FILES}):[^|\]\n]{{1,255}}\|)?"  # MediaWiki's longest title
        rf"(?:\b(?:(?:{_OPTIONS})(?:=[\d.]+)?|(?:{_KEYS})=[^|=\[\]\n]{{0,255}}"
        r"|(?:\d+x)?\d+(?:px|пкс|像素|ピクセル))\|)+",
        needles=("|",),
        in_line=True,
    ),
    replace(
        "category",
        rf"(?i)\[\[(?:(?:{_CATEGORIES}):[^\[\]\n]*|(?:{_FILES}):[^\[\]|\n]*)\]\]",
        needles=("[[",),
    ),
    replace("link", r"\[\[(?:[^\[\]|\n]*\|)?([^\[\]|\n]*)\]\]", r"\1", needles=("[[",)),
    replace("stray_markup", r"\[\[|\]\]|\{\{|\}\}", needles=("[[", "]]", "{{", "}}")),
    Rule("switch", _switches),
    # Left by dropped templates and IPA transcriptions: "Archimedes (; ; ) was".
    several(
        replace("empty_parentheses", rf"\([{_SEPARATORS}]*\)", needles=("(",)),
        replace("", rf"（[{_SEPARATORS}]*）|【\s*】|〔\s*〕", needles=("（", "【", "〔")),
    ),
    several(
        *(
            replace(
                "parenthesis_start",
                rf"{re.escape(start)}\s*[{_MARKS}{_COLONS}][\s{_MARKS}{_COLONS}]*",
                start,
                needles=(start,),
            )
            for start in "(（"
        )
    ),
    several(
        replace(
            "parenthesis_end",
            rf"(?<![\s{_MARKS}])\s*[{_MARKS}][\s{_MARKS}]*\)",
            ")",
            needles=(")",),
            within=rf"\)(?<=[\s{_MARKS}]\))",
            in_line=True,
        ),
        replace("", rf"(?<![\s{_MARKS}])\s*[{_MARKS}][\s{_MARKS}]*）", "）", needles=("）",)),
    ),
    several(
        replace("empty_quotes", r'""(?<=\s"")(?=[\s.,;:)])', needles=('""',)),
        replace(
            "",
            r"“”|„[“”]|「\s*」|『\s*』|《\s*》|〈\s*〉",
            needles=("“”", "„“", "„”", "「", "『", "《", "〈"),
        ),
        # Marks that open in one language and close in another: »A« »B«, «A» «B».
        replace(
            "",
            r"(?<![^\s(\[])(?:«\s*»|‹\s*›|»«|›‹|””|‘’|’’)(?![^\s.,;:!?)\]])",
            needles=("«", "‹", "””", "’’", "‘’"),
        ),
    ),
    replace("doubled_quotes", r'""', '"', needles=('""',)),
    several(
        replace("repeated_commas", r",(?:\s*,)+", ",", needles=(", ,", ",,")),
        replace("", r"([，،、])(?:\s*\1)+", r"\1", needles=("，", "،", "、")),
        # "(英语:;1990)": a transcription was between the two.
        replace("", r":(?<=[^\W\d_]:)\s*(?=[;；，、،؛])", needles=(":",)),
        replace("", r"：(?<=[^\W\d_]：)\s*(?=[;；，、،؛])", needles=("：",)),
    ),
    several(
        replace("space_before_mark", r" (?<!  ) *([.,;])(?=\s|$)", r"\1", within=r" [.,;](?=\s|$)"),
        replace(
            "",
            r" (?<!  ) *([。，、；：．،؛۔।॥])",
            r"\1",
            needles=("。", "，", "、", "；", "：", "．", "،", "؛", "۔", "।", "॥"),
        ),
    ),
    several(
        replace("list_marker", r"^[*#:;•·]+\s+(?=\S)", needles=("*", "#", ":", ";", "•", "·")),
        # --lists writes "BULLET::::- " or "BULLET::::3. ".
        replace(
            "",
            r"^(?:[^\S\n]*BULLET::::(?:-|\d+\.)?|[・●■]+)[^\S\n]*",
            needles=("BULLET::::", "・", "●", "■"),
        ),
    ),
    drop_lines("heading", _is_heading),
)
