"""Every cleaning rule, on text it must change and on text it must not."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceNormalizer
from tokenizers.normalizers import BertNormalizer

from bert_jax.data_pipeline.sources import KINDS
from bert_jax.data_pipeline.text.clean import clean
from bert_jax.data_pipeline.text.sentences import split
from bert_jax.errors import UserError

WIKI = [
    ("element", 'Won.<ref name="a/b"></ref> He.', "Won. He."),
    ("element", "so <math>x^2</math> is.", "so is."),
    ("element", "Area<ref name=x/> is.", "Area is."),
    ("line_break", "arms<br>That he.", "arms That he."),
    ("tag", "CO<sub>2</sub> <nowiki>[</nowiki>sic].", "CO2 [sic]."),
    ("formula", "over formula_12 steps..", "over steps.."),
    ("table_markup", '!colspan="3"|Sales\n| a\n!Kung people speak.', "!Kung people speak."),
    (
        "image_options",
        "[[File:a b.jpg|thumb|170px|Joseph Szigeti at home.]]",
        "Joseph Szigeti at home.",
    ),
    ("category", "[[Category:Violinists]]\nText follows.", "Text follows."),
    ("link", "of [[Law (politics)|law]] and [[Nazi]] rule.", "of law and Nazi rule."),
    ("stray_markup", "rule]] and {{this.", "rule and this."),
    ("empty_parentheses", "Archimedes (; ; ) was.", "Archimedes was."),
    ("parenthesis_start", "Anne (; 12 December) was.", "Anne (12 December) was."),
    ("parenthesis_end", 'Surtsey ("island", ; ) is.', 'Surtsey ("island") is.'),
    ("empty_quotes", 'A pod from "" was.', "A pod from was."),
    ("doubled_quotes", 'the ""Rallus" assemblage" is.', 'the "Rallus" assemblage" is.'),
    ("repeated_commas", "fluorides of , , and Xe.", "fluorides of, and Xe."),
    ("space_before_mark", "24.8 million people . In 2000.", "24.8 million people. In 2000."),
    ("list_marker", "• A first point here.", "A first point here."),
    ("heading", "Works cited\nHe wrote a book.", "He wrote a book."),
    ("heading", "関連項目（脚注）\n猫は動物である。", "猫は動物である。"),
    ("variant", "在-{zh-tw:網路; zh-cn:网络}-上。", "在网络上。"),
    ("section_title", "Section::::Life and work of him.\nHe lived.", "He lived."),
    ("section_title", "== Life, and work. ==\n<h3>More of it.</h3>\nHe lived.", "He lived."),
    ("anchor", 'A <a href="Law%20%28a%29">law</a> is.', "A law is."),
    ("tag", "<ol><li>A cat is.</<li>A dog is.</ol>", "A cat is.A dog is."),
    ("list_marker", "BULLET::::- A cat is.\nBULLET::::12. A dog is.", "A cat is.\nA dog is."),
    ("list_marker", "・猫は動物である。", "猫は動物である。"),
    ("switch", "__NOTOC__ A cat __notoc__is.__БЕЗ_ОГЛАВЛЕНИЯ__", "A cat is."),
    ("image_options", "[[Datei:a b.jpg|mini|170px|Er geht heim.]]", "Er geht heim."),
    ("category", "[[Категория:Кот|Я]]\nКот — животное.", "Кот — животное."),
    ("empty_parentheses", "猫（；、「」）は、犬 (\u200e) である。", "猫は、犬 である。"),
    ("parenthesis_start", "猫（；1900年）は、いる。", "猫（1900年）は、いる。"),
    ("parenthesis_end", "猫（ねこ、）は、いる。", "猫（ねこ）は、いる。"),
    ("empty_quotes", "Er „“ und «Ä» sie《》.", "Er und «Ä» sie."),
    ("repeated_commas", "猫、、犬がいる。", "猫、犬がいる。"),
    ("space_before_mark", "猫 、犬 。", "猫、犬。"),
    ("formula", "速度formula_12是快的。见codice_3。", "速度是快的。见。"),
    ("switch", "__بی\u200cفهرست__ یک گربه.", "یک گربه."),
    ("switch", "__विषय_सूची_हीन__ बिल्ली है।", "बिल्ली है।"),
    ("switch", "__உள்ளடக்கமில்லை__ பூனை.", "பூனை."),
    ("parenthesis_end", "He (ANSI, \u00a0 ) is.", "He (ANSI) is."),
    ("parenthesis_end", "قط (1990 ،) هو.", "قط (1990) هو."),
    ("parenthesis_end", "猫(英语:;1990、)。", "猫(英语;1990)。"),
    ("space_before_mark", "قط ، هو ؛ هي.", "قط، هو؛ هي."),
    ("space_before_mark", "वह है ।", "वह है।"),
    ("empty_quotes", "He ”” is »«.", "He is."),
    ("variant", "在-{+|zh-cn:A;zh-tw:B}-上-{A|zh-cn:C;zh-tw:D}-。", "在上C。"),
    ("element", "Won.<Ref>x</Ref> It <MATH>x</MATH> is.", "Won. It is."),
    ("element", "It <source lang=c>if (a < b) c;</source> is.", "It is."),
    ("element", "It <imagemap>\nFile:a, b.\n</imagemap> <maplink a=1 /> is.", "It is."),
    ("element", "It <graph>{}</graph><inputbox>a</inputbox> is.", "It is."),
    ("element", "It <categorytree>A</categorytree> is.", "It is."),
    ("tag", 'A <SPAN class="a">b</SPAN><br\\><ol reversed>c</ol> is.', "A b c is."),
    ("anchor", 'A <A HREF="b">c</A> is.', "A c is."),
    ("entity", "&amp;lt;b A&amp;M.", "<b A&M."),
    ("entity", "p = &amp;region &section; &copy; is.", "p = &region &section; © is."),
    ("control_character", "a\x0bb.", "a b."),
    ("invisible_character", "co\xadop \u202abobby.", "coop bobby."),
    ("line_without_words", "Text here.\n—\n* * *", "Text here."),
]
BOOKS = [
    ("block_quote", '> "Logic is logic."\n> Said O.', '"Logic is logic." Said O.'),
    ("illustration", "a [Illustration: the ship] b", "a b"),
    ("footnote_mark", "Fiesco [*] had [FN 10] done [12]", "Fiesco had done"),
    ("wrapped_line", "one\ntwo  \nthree\n\nfour", "one two three\nfour"),
    ("strong", "**PUCK** Here", "PUCK Here"),
    ("emphasis", "He _did_ love _her\nwell_.", "He did love her well."),
    ("emphasis_stars", "*Ten feet.* J.", "Ten feet. J."),
    ("backslash", "1\\. Helicopters", "1. Helicopters"),
    ("line_without_words", "End.\n\n* * * * *\n\nNext.", "End.\nNext."),
]
PYTHON = [
    (
        "doctest",
        "Add them up now:\n\n>>> f(1)\n2\n\nThen go on there.",
        "Add them up now:\nThen go on there.",
    ),
    ("heading", "Assert\n******\n\nThey insert debugging checks.", "They insert debugging checks."),
    ("role", "See :class:`~a.Path` for the rest.", "See a.Path for the rest."),
    ("literal", "Return the ``name`` of it.", "Return the name of it."),
    ("emphasis", "Return the *name* of it.", "Return the name of it."),
    ("wrapped_line", "Return the name\nof this thing.", "Return the name of this thing."),
    ("directive", ".. note::\n\nThis is a thing.", "This is a thing."),
    (
        "list_marker",
        "* the first of them\n* the second one too",
        "the first of them\nthe second one too",
    ),
    ("literal_block_mark", "This is what happens::\n", "This is what happens:"),
    ("not_prose", "Copy the tree.\n\n    x = f(y) + [1]\n\nf(a, b) -> c", "Copy the tree."),
]
CASES = [
    *(("wikiextractor", *case) for case in WIKI),
    *(("books", *case) for case in BOOKS),
    *(("python", *case) for case in PYTHON),
]


@pytest.mark.parametrize(("kind", "rule", "text", "cleaned"), CASES)
def test_rule(kind: str, rule: str, text: str, cleaned: str) -> None:
    result, counts = clean(text, KINDS[kind].rules)
    assert result == cleaned
    assert counts[rule] >= 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "wikiextractor",
            "The play <QUOTE> was (wonderfully) performed (...) in 10,000 towns; really.",
        ),
        ("wikiextractor", 'He said "stop it now."'),
        ("wikiextractor", "The method __init__ of the class __my_Class__ is here."),
        ("wikiextractor", "A set is {1} - {2}, a[1]-{x} and x-{y}."),
        ("wikiextractor", "他说：“好（真的）。”（笑）它来了。"),
        ("wikiextractor", "Sie kam („gern“, sagte er) – und «ging»."),
        ("wikiextractor", "If x == y == z, then <a> is <x-c>."),
        ("wikiextractor", "It is so if a<b and c>d, or if a<p and q>r."),
        ("wikiextractor", "Sie sagte »A« »B« und »C««. Il dit «A» «B»."),
        ("wikiextractor", "แมวเป็นสัตว์เลี้ยงลูกด้วยนม"),
        ("wikiextractor", "ແມວ ເປັນ ສັດ"),
        ("wikiextractor", "ឆ្មា ជា សត្វ"),
        ("wikiextractor", "ကြောင်သည် တိရစ္ဆာန်"),
        ("wikiextractor", "And bend a moment there alone;"),
        ("wikiextractor", "The Lord of the Rings and what followed"),
        ("wikiextractor", "Donaudampfschifffahrtsgesellschaftskapitän " * 2 + "went aboard"),
        ("wikiextractor", "The range is 6,500 km, and f(x, y) = {x}."),
        ("books", "He wrote ___ to snake_case and 18__ * 2."),
        ("books", "[To Mrs. Weston.] WINDSOR-JULY."),
        ("python", "Return True if the file exists (and is readable), else False."),
    ],
)
def test_prose_is_left_alone(kind: str, text: str) -> None:
    assert clean(text, KINDS[kind].rules) == (text, {})


def test_every_rule_of_every_kind_has_a_case() -> None:
    covered = {(kind, rule) for kind, rule, _, _ in CASES}
    own = {kind: row.rules for kind, row in KINDS.items() if kind != "dump"}
    assert KINDS["dump"].rules is own["wikiextractor"]
    rules = {(kind, rule.name) for kind, some in own.items() for rule in some}
    assert rules <= covered


def test_a_repeated_title_goes_once() -> None:
    text, counts = clean("Autism\n\nAutism is.\nAutism\n", title="Autism")
    assert text == "Autism is.\nAutism"
    assert counts == {"repeated_title": 1}
    assert clean("Autism is.", title="Autism")[0] == "Autism is."


def test_given_sentences_keep_their_lines() -> None:
    text, _ = clean("First one\n---\n  &amp; second \n", sentences_given=True)
    assert text == "First one\n---\n& second"


def test_white_space_becomes_single_spaces() -> None:
    assert clean("a\u00a0 b\t c \n\n\n d")[0] == "a b c\nd"


@given(st.text(" \n\t\v\f\x1c\x85\xa0\u2003\u2028\u3000a\u00e9_*-."))
def test_lines_have_single_spaces_and_words(text: str) -> None:
    without_words = re.compile(r"^(?=[^\n]*\S)(?:[^\w\n]|_)+$", re.MULTILINE)
    shown = re.sub(r"[\v\f\x1c\x85\u2028]", " ", text)  # `control_character`
    wanted, dropped = without_words.subn("", shown)
    lines = [" ".join(line.split()) for line in wanted.split("\n")]
    cleaned, counts = clean(text)
    assert cleaned == "\n".join(line for line in lines if line)
    assert counts["line_without_words"] == dropped


def test_invisible_characters_are_left_to_the_tokenizer_that_has_a_rule_for_them() -> None:
    """SentencePiece makes a space of U+200B, as BERT's WordPiece deletes it."""
    nmt = SentencePieceNormalizer(rule_name="nmt_nfkc", add_dummy_prefix=False)
    bert = BertNormalizer(lowercase=False, strip_accents=False)
    spaces = set()
    for character in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(character) != "Cf":
            continue
        text = f"ab{character}cd."
        shown, _ = clean(text)
        assert bert.normalize_str(shown) == bert.normalize_str(text)
        if nmt.normalize(text) == "ab▁cd.":
            spaces.add(character)
            assert nmt.normalize(shown) == "ab▁cd."
    assert spaces == set("\u061c\u200b\u200c\u200e\u200f\ufeff")


def test_sentences_are_split_by_language() -> None:
    assert split("Mr. Smith went. He saw it.\nNew paragraph here", "en") == [
        "Mr. Smith went.",
        "He saw it.",
        "New paragraph here",
    ]
    assert len(split("猫がいた。犬もいた。", "ja")) == 2


def test_a_paragraph_ends_a_sentence_without_a_mark() -> None:
    assert split("No mark here\nand another one", "en") == ["No mark here", "and another one"]


def test_a_dot_inside_a_word_ends_no_sentence() -> None:
    assert split("Any asyncio.CancelledError is raised. Then it ends.", "en") == [
        "Any asyncio.CancelledError is raised.",
        "Then it ends.",
    ]


def test_an_unknown_language_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'english' is unknown.*'en'"):
        split("Text.", "english")
