"""Generated pages of wikitext: markup of every kind, whole, unclosed and nested; seeded."""

import random
from collections.abc import Callable

from bert_jax.data_pipeline.text.wikitext_words import DROPPED_EXTENSIONS, DROPPED_TAGS

EXTENSIONS = sorted(DROPPED_EXTENSIONS | {"nowiki", "poem", "langconvert"})
TAGS = sorted(DROPPED_TAGS | {"b", "br", "div", "noinclude", "onlyinclude", "small", "span", "td"})
WORDS = """
a I cat l d' été Haus кот 猫 は。 don't '90s x' , . ( ; ) （；） 《》 & &amp; &#39; ~~~~ 5
"""
NAMES = """
lang|fr convert|5|km nowrap|1=a Infobox cite_web frob #if:x quote|text=a 's
"""
FORMS = r"""
<{0}>{1}</{0}>   <{0}/>   <{0} />   <{0}\tname='a'>{1}</{0}\t>   <{0}>{1}   </{0}>{1}
<{2}>{1}</{2}>   <{0}\tname="a\n">{1}</{0}\n>   <{0}\ta=/>{1}   <{0}\t{1}   <{0}{1}>
<{0}>{1}</{0}   <{0}
"""
BLOCKS = r"""
-{{{0}}}-   -{{zh-hans:{0};zh-hant:{1}}}-   -{{H|zh-cn:{0};zh-tw:{1};}}-   -{{zh;zh-hk|{0}}}-
-{{{0}   {0}}}-   -{{A|{0}=>zh-cn:{1};\nzh-tw:{0}}}-   -{{T|   -{{-|{0}}}-   -{{{{{0}}}}}-
"""
MARKS = r"""
{{{{{0}|{1}}}}}   {{{{{0}|{1}   {{{{{{{0}}}}}}}   }}}}   [[{1}]]   [[A|{1}]]   [[{1}   ]]   [http://a.b
[[File:a.jpg|thumb|{1}]]   [[Kategorie:{1}]]   [http://a.b\t{1}]   \n{{|\n|-\n|\t{1}\n|}}\n   \n|}}
\n{{|\tclass=x\n!\t{1}   \n==\t{1}\t==\n   \n*\t{1}\n   \n:;#\t{1}   <!--\t{1}\t-->   <!--   -->
__NOTOC__   __目次__   ----   <{1}>
"""


def forms(text: str) -> list[str]:
    r"""Splits at spaces; \t stands for one, \n for a line end."""
    return [form.replace(r"\t", " ").replace(r"\n", "\n") for form in text.split()]


def runs(rng: random.Random) -> str:
    """A run of apostrophes, mostly one that is a mark."""
    return "'" * rng.choice((1, 2, 2, 2, 3, 3, 3, 4, 5, 5, 6, 9))


def page(rng: random.Random, depth: int = 3) -> str:
    """A page, or the content of a block."""
    pieces = [_piece(rng, depth) for _ in range(rng.randint(1, 12))]
    return rng.choice(("", " ", "\n")).join(pieces)


def _piece(rng: random.Random, depth: int) -> str:
    inner: Callable[[], str] = lambda: page(rng, depth - 1) if depth else rng.choice(WORDS.split())  # noqa: E731
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(WORDS.split())
    if kind < 5:
        return runs(rng)
    if kind < 7:
        name = rng.choice(EXTENSIONS if rng.random() < 0.7 else TAGS)
        return rng.choice(forms(FORMS)).format(name, inner(), name.upper())
    if kind < 8:
        return rng.choice(forms(BLOCKS)).format(rng.choice(WORDS.split()), inner())
    return rng.choice(forms(MARKS)).format(rng.choice(NAMES.split()), inner())


def quoted_page(rng: random.Random) -> tuple[str, str]:
    """Lines of words and runs of apostrophes, also beside markup that shows nothing; and the same
    with "\\ufffc" where that markup is."""
    source, shown = [], []
    for _ in range(rng.randint(1, 40)):
        hidden = rng.random() < 0.1
        text = rng.choice(("<nowiki/>", "<b>", "<ref>x</ref>", "<i/>")) if hidden else _quoted(rng)
        source.append(text)
        shown.append("\ufffc" if hidden else text)
    return "".join(source), "".join(shown)


def _quoted(rng: random.Random) -> str:
    words = ("a", "d", "été", "é", "Katze", "猫", " ", " ", "  ", "\n", ".", " l", " é", " de")
    return runs(rng) if rng.random() < 0.4 else rng.choice(words)
