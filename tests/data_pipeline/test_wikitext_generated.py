"""2,000 generated pages of wikitext: all are read, and apostrophes are what MediaWiki shows."""

import random
import re

import pytest
import wikitext_pages as made

from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.sources.document import Document
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.text.wikitext import plain_text
from bert_jax.data_pipeline.text.wikitext_words import BY_LANGUAGE

PAGES = 2000
SHARE = 10  # the default tests read every tenth
PRIVATE = re.compile("[\x00-\x08\x0b-\x1f]")  # what stands for markup inside the reader

shares = pytest.mark.parametrize(
    "seeds", [range(0, PAGES, SHARE), pytest.param(range(PAGES), marks=pytest.mark.slow)]
)


@shares
def test_every_generated_page_is_read(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        wikitext, language = made.page(rng), rng.choice(sorted(BY_LANGUAGE))
        text, counts = plain_text(wikitext, language=language)
        assert not PRIVATE.search(text), wikitext
        assert "too_much_markup" not in counts, wikitext
        document = Document(wikitext, plain_text=lambda _, text=text, n=counts: (text, n))
        shown, _ = cleaned(document, parse_source(f"dump:a.xml,lang={language}"))
        assert not re.search(r"<!--.*-->|</?nowiki|<ref\b", shown), wikitext


# MediaWiki's rule ---------------------------------------------------------------------------------


def shown_by_mediawiki(line: str) -> str:
    """A line as HTML, with <both> for <i><b>: doQuotes of MediaWiki's parser, which looks at
    bytes."""
    parts = re.split(b"(''+)", line.encode())
    for i in range(1, len(parts), 2):
        spare = {4: 1}.get(len(parts[i]), max(len(parts[i]) - 5, 0))
        parts[i - 1] += b"'" * spare
        parts[i] = parts[i][spare:]
    lengths = [len(part) for part in parts[1::2]]
    if sum(n in (3, 5) for n in lengths) % 2 and sum(n in (2, 5) for n in lengths) % 2:
        places: dict[str, int] = {}
        for i in range(1, len(parts), 2):
            if len(parts[i]) == 3:
                last, before = parts[i - 1][-1:], parts[i - 1][-2:-1]
                kind = "space" if last == b" " else "letter" if before == b" " else "word"
                places.setdefault(kind, i)
        found = [places[kind] for kind in ("letter", "word", "space") if kind in places]
        if found:
            parts[found[0]] = b"''"
            parts[found[0] - 1] += b"'"
    html, held, state = "", "", ""
    for i, part in enumerate(parts):
        if i % 2 == 0:
            if state == "both":
                held += part.decode()
            else:
                html += part.decode()
            continue
        tags, state = TAGS[state, len(part)]
        html += tags.format(held)
        held = "" if state == "both" else held
    closing = {"b": "</b>", "i": "</i>", "bi": "</i></b>", "ib": "</b></i>"}.get(state, "")
    return html + (f"<both>{held}</both>" if state == "both" else closing)


TAGS = {
    ("", 2): ("<i>", "i"),
    ("b", 2): ("<i>", "bi"),
    ("i", 2): ("</i>", ""),
    ("bi", 2): ("</i>", "b"),
    ("ib", 2): ("</b></i><b>", "b"),
    ("both", 2): ("<b><i>{}</i>", "b"),
    ("", 3): ("<b>", "b"),
    ("b", 3): ("</b>", ""),
    ("i", 3): ("<b>", "ib"),
    ("bi", 3): ("</i></b><i>", "i"),
    ("ib", 3): ("</b>", "i"),
    ("both", 3): ("<i><b>{}</b>", "i"),
    ("", 5): ("", "both"),
    ("b", 5): ("</b><i>", "i"),
    ("i", 5): ("</i><b>", "b"),
    ("bi", 5): ("</i></b>", ""),
    ("ib", 5): ("</b></i>", ""),
    ("both", 5): ("<both>{}</both>", ""),
}


def as_text(html: str) -> str:
    """The text of a line, with quotation marks around italics; none around text that five
    apostrophes begin and end, and none around nothing."""
    html = re.sub("</i></b><i>|</?b>|</?both>", "", html)
    html = re.sub("<i>([\ufffc \t]*)</i>", r"\1", html)
    return re.sub(r"</?i>", '"', html).replace("\ufffc", "")


@shares
def test_apostrophes_are_those_that_mediawiki_shows(seeds: range) -> None:
    for seed in seeds:
        source, shown = made.quoted_page(random.Random(seed))
        text, _ = plain_text(source, language="en")
        wanted = [as_text(shown_by_mediawiki(line)) for line in shown.split("\n")]
        got = text.split("\n")
        assert [spaceless(line) for line in got] == [spaceless(line) for line in wanted], source
        assert all(line.count('"') % 2 == 0 for line in got), source


def spaceless(line: str) -> str:
    """A line without spaces: italics that the end of a line closes have none at their end."""
    return line.replace(" ", "")
