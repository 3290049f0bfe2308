"""The words that decide which parts of wikitext are text (see `wikitext`), read from the table of
this name, wikitext_words.toml. To add a language, write a table `languages.CODE` there.

Names are in lower case, with spaces for underscores; one that ends in `*` stands for all names that
begin so, one that begins with `*` for all that end so. A pattern is what a template leaves in the
text: `{1}` is its first unnamed argument, `{-1}` the last, `{*}` all of them joined, `{text|1}` the
first of these that is not empty. A tuple has the patterns for one, two, … unnamed arguments.
"""

# ruff: noqa: RUF001  (words and signs of many languages)

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


def _all(text: str, pattern: Pattern) -> dict[str, Pattern]:
    return dict.fromkeys(_words(text), pattern)


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

# {{convert|5|to|10|km|mi}}: the values and their first unit, "5 to 10 km".
CONVERT: Final = "convert"
# {{as of|2014|5|lc=y}}: "as of 2014".
AS_OF: Final = "as of"
# {{formatnum:1000}}: what follows the colon.
AFTER_COLON: Final = ":"

KEPT_TEMPLATES: Final[dict[str, Pattern]] = {
    **_all("convert, cvt, conv", CONVERT),
    **_all("as of, asof", AS_OF),
    **_all("formatnum:*", AFTER_COLON),
    **_all(
        """
        nowrap, nobr, nobreak, nwr, j, small, smaller, big, bigger, larger, em, strong, sub, sup
        center, nobold, noitalic, normal, underline, mono, code, tt, kbd, samp, var, mvar
        smallcaps, sc, sc2, abbr, abbreviation, abbrv, tooltip, sic, not a typo, notatypo, typo
        as written, proper name, ill, interlanguage link, illm, vanchor, visible anchor, angbr
        angle bracket, iast, unicode, script/*, polytonic, hebrew, flag, flagcountry, flagu, nts
        formatnum, chem2, railgauge, track gauge
        """,
        "{1}",
    ),
    **_all("lang-*", "{1|text}"),
    **_all("lang, langx, script, color, colour, font color", "{2|text}"),
    **_all("transl, transliteration, resize", "{-1}"),
    **_all("chem, linktext", "{*}"),
    **_all("nihongo, nihongo2, nihongo3, nihongo krt", "{1|3|2}"),
    **_all(  # quotations are paragraphs
        """
        quote, quotation, blockquote, block quote, cquote, bquote, centered quote, poem quote
        poemquote
        """,
        "\n{text|quote|content|1}\n",
    ),
    **_all("music", "-{1}"),
    **_all("circa, c., ca.", "c. {1}"),
    **_all("floruit, fl.", "fl. {1}"),
    **_all("frac, fraction, sfrac", ("1/{1}", "{1}/{2}", "{1} {2}/{3}")),
    **_all("ship", "{1} {2}"),
    **_all("sclass, sclass2", "{1}-class {2}"),
    **_all("uss", "USS {1}"),
    **_all("hms", "HMS {1}"),
    **_all("ss", "SS {1}"),
    **_all("us$, usd", "US${1}"),
    **_all("gbp, £", "£{1}"),
    **_all("eur, €", "€{1}"),
    **_all("inr, indian rupee", "₹{1}"),
    # Templates that stand for a character.
    **_all("nbsp, space, spaces, thinsp, thin space, hair space, zwsp, wbr, shy", " "),
    **_all("ndash, en dash, endash, --", "–"),
    **_all("mdash, em dash, emdash, mdashb, ---", "—"),
    **_all("spaced ndash, spaced en dash, spndash, snd, snds, spnd", " – "),
    **_all("spaced mdash, spaced em dash", " — "),
    **_all("', apostrophe", "'"),
    **_all("'s", "'s"),
    **_all("' \"", "'\""),
    **_all("\" '", "\"'"),
    **_all("dot, ·, middot", " · "),
    **_all("times, ×", "×"),
    **_all("okina", "ʻ"),
    **_all("pi", "π"),
    **_all("=", "="),
}
