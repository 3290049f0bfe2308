"""The text of wikitext: what stays, what goes."""

import pytest

from bert_jax.data_pipeline.sources.wikiextractor import RULES
from bert_jax.data_pipeline.text.clean import clean
from bert_jax.data_pipeline.text.wikitext import UNKNOWN, is_disambiguation, plain_text


def text_of(wikitext: str, language: str = "en", files: tuple[str, ...] = ()) -> str:
    """The text after the rules for leftovers, as a build makes it."""
    return clean(plain_text(wikitext, language=language, files=files)[0], RULES)[0]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        # Links and emphasis.
        ("See [[Lake Erie|the lake]] and [[Ohio]].", "See the lake and Ohio."),
        ("A [http://a.example page] [http://b.example].", "A page."),
        ("'''Bold''' ''italic'' '''''both''''' L''''Arc'.", "Bold \"italic\" both L'Arc'."),
        ("Up [[File:A.jpg|thumb|A [[cat]].]]down [[:File:B]].", "Up down File:B."),
        ("One.[[Category:Cats]] Two.[[de:Katze]]", "One. Two."),
        # Templates.
        ("It is {{convert|5|to|10|km|mi|abbr=on}} long.", "It is 5 to 10 km long."),
        ("He is {{convert|6|ft|2|in|cm}} tall.", "He is 6 ft 2 in tall."),
        (
            "The {{lang|fr|roi}} and {{lang-de|König}} of {{nowrap|5 W}}.",
            "The roi and König of 5 W.",
        ),
        ("{{nowrap|1=a=b}} is so.", "a=b is so."),
        (
            "{{As of|2014}} it was, {{as of|2015|lc=y}} it is.",
            "As of 2014 it was, as of 2015 it is.",
        ),
        ("{{transl|ar|ALA|al-Jazair}} is {{frac|1|2}} of {{frac|3}}.", "al-Jazair is 1/2 of 1/3."),
        ("He said:\n{{quote|I am, and was.|A. Man}}\nThen.", "He said:\nI am, and was.\nThen."),
        ("It was{{citation needed|date=May 2015}} here{{cn}}.", "It was here."),
        ("It ({{IPAc-en|a}}; born 1900) was.", "It (born 1900) was."),
        ("{{Infobox cat|name={{nowrap|Tom}}|x=[[a]]}}Tom is a cat.", "Tom is a cat."),
        # Tags, comments and tables.
        ("It is.<ref name=a>{{cite web|t=]]}}</ref> So<ref name=a /> it is.", "It is. So it is."),
        ("A <!-- not [[this --> cat.<br>A dog.", "A cat. A dog."),
        ("E <math>E = {{mc}}</math> is <b>bold</b> and H<sub>2</sub>O.", "E is bold and H2O."),
        ("Before.\n{| class=x\n! a\n|-\n| b || c\n|}\nAfter.", "Before.\nAfter."),
        ("A <nowiki>[[b]]</nowiki> c &lt; d&nbsp;e.", "A b c < d e."),
        ("<nowiki/>A cat<nowiki />s.", "A cats."),
        ("A.<ref>b</ref> C<nowiki/> d e.", "A. C d e."),
        ("A <ref>that never closes, and more.", "A that never closes, and more."),
        # Lists, headings and sections.
        ("Some are:\n* a cat, a dog\n# a bird\n;a: b\nThat is all.", "Some are:\nThat is all."),
        ("He said:\n:I came, I saw, I won.", "He said:\nI came, I saw, I won."),
        ("A cat.\n== Its life ==\nIt lives.\n== See also ==\nA dog.", "A cat.\nIt lives."),
        ("A.\n== Notes ==\nx y.\n=== More ===\nz.\n== Life ==\nB.", "A.\nB."),
        ("__NOTOC__\nA cat lives.", "A cat lives."),
    ],
)
def test_what_stays_of_wikitext(wikitext: str, text: str) -> None:
    assert text_of(wikitext) == text


def test_words_of_another_language() -> None:
    german = "Eine Katze.[[Datei:A.jpg|mini|Sie.]]\n== Weblinks ==\nMehr hier."
    assert text_of(german, "de", files=("Datei",)) == "Eine Katze."
    assert text_of("Ein Haus.[[Bild:A.jpg|Es.]]", "de") == "Ein Haus."
    assert is_disambiguation("* a\n{{Begriffsklärung}}", "de")


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("* a\n{{disambiguation}}", True),
        ("* a\n{{Disambig|geo}}", True),
        ("{{hndis|Doe, John}}", True),
        ("A{{disambiguation needed|date=May 2015}} b.", False),
        ("{{disambiguous}}", False),
    ],
)
def test_disambiguation_pages(wikitext: str, expected: bool) -> None:
    assert is_disambiguation(wikitext, "en") is expected


def test_unknown_templates_are_counted_by_name() -> None:
    counts = plain_text("{{Frob|a}} {{frob_ }} {{cite web|x}} {{nowrap|b}}", language="en")[1]
    assert counts == {f"{UNKNOWN}frob": 2}
