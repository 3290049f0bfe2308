"""Sentence splitting: inside quotations and parentheses too, elsewhere as sentencex does."""

import importlib.util
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
import sentencex
from hypothesis import example, given
from hypothesis import strategies as st

from bert_jax.data_pipeline.sources import find, parse_source
from bert_jax.data_pipeline.text import sentences
from bert_jax.data_pipeline.text.sentences import cut, split
from bert_jax.errors import UserError

# " | " marks the end of a sentence.
ENGLISH = [
    # The example of the issue, and an attribution after the last sentence.
    '"Come along. | We shall be late. | Where is your hat?" said Tom.',
    '"Come along. | It was on the chair," said Tom.',
    '"Come along!" he said. | "Oh."',
    '"Come along!" | Tom said so.',
    '"Come!"—he said. | "Come!" (he said). | "Go!" --she ran.',
    "'Hello?' asked Tom. | 'It is late. | Come,' he said.",
    # A closing mark belongs to the sentence before it, an opening one to the sentence after it.
    'He said "it is late." | Then he went.',
    'It is late." | Then he went.',
    "“He said, ‘Come. | Go.’ | And then he left.” | “Yes.”",
    '"Stop!" | "Why?" | "Because."',
    '"I know," said I. | "But you do not."',
    '"Wait... I saw it. | Then—no!" | He ran.',
    '"Why?" ... | She ran.',
    # A quotation that is never closed does not swallow the text after it.
    "“Come along. | He went. | She did not.",
    'A hat of 6" stood there. | He saw it. | It fell.',
    # Apostrophes are not quotation marks.
    "I don't know. | It's five o'clock. | The dogs' bowls are empty. | 'Tis so.",
    # Parentheses, brackets, references.
    "He came (see below. | And more.) and left. | Done.",
    "(He was late, very late, as usual. | His hat was gone and so was his coat.) | He ran.",
    "It was 3 ft (1.2 m). | High tides came.",
    'They sang "Aren\'t They?". | Shelton left.',
    "This is it.[1] | Then he went. | [He goes out. | Dark.]",
    "So it is.[12]",
    # Abbreviations, titles and notes are not split.
    '"Well, Mr. Smith. | Come here." | He did.',
    'The film "Dr. No" came. | So did "Help! I Need Somebody" later.',
    "He saw it (vol. II) there (c. 1600–c. 1050 BC). | Done.",
]
OTHERS = [
    (
        "fr",
        "« Bonjour. | Ça va ? » dit-il. | Il part. | « Non ! » évidemment. | « Oui ! » | Émile.",
    ),
    ("de", "„Komm. | Wir gehen.“ | Er ging. | „Nein!“ sagte er. | »Ja. | Nein.« | Ende."),
    ("ru", "Он сказал: «Пойдём. | Уже поздно.» | Потом ушёл. | «Да!» сказал он."),
    ("ja", "「猫がいた。|犬もいた。」|『雨だ。』|（見た。|帰った。）|終わり。"),
    ("zh", "“你好。|你去哪儿？”|“我回家。”|（见下。）|他走了。"),
]


@pytest.mark.parametrize(("language", "marked"), [*(("en", text) for text in ENGLISH), *OTHERS])
def test_sentences_of(language: str, marked: str) -> None:
    pieces = [piece.strip() for piece in marked.split("|")]
    joint = "" if language in ("ja", "zh") else " "
    assert split(joint.join(pieces), language) == pieces


def test_a_long_dialogue_in_one_quotation_is_not_one_sentence() -> None:
    said = "I went out and saw the old man again. "
    assert split(f'"{said * 50}" he said.', "en")[1:-1] == [said.strip()] * 48


SCRAPS = st.sampled_from(
    [
        *('"', ". ", '." ', "' ", "Mr. ", "(", "). ", "He ", "she ", "? ", "!) ", "... ", "[1] "),
        *("“", "” ", "i.e. ", "U.S. ", "。", "」", "「", "« ", " »", "2 ", "don't ", "a\u00a0."),
        *("\u3000", "\n", "\t"),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(SCRAPS).map("".join))


@given(TEXTS, st.sampled_from(["en", "de", "fr", "ja", "zh", "ru", "hi", "ar", "el", "my", "ur"]))
@example("A\u00a0.", "en")  # sentencex panics at it
def test_the_pieces_make_up_the_text_again(text: str, language: str) -> None:
    lines = ["".join(pieces) for pieces in cut(text, language)]
    assert "\n".join(lines) == text
    assert all(sentence and sentence == sentence.strip() for sentence in split(text, language))


@given(st.text(alphabet="abAB .!?,;:—1").map(lambda text: " ".join(text.split())))
def test_a_line_without_marks_is_split_as_sentencex_does(line: str) -> None:
    alone = sentencex.segment("en", line)
    glued = any(p.endswith(".") and q[:1].isalpha() for p, q in pairwise(alone))
    assert glued or [piece for piece in next(cut(line, "en")) if piece] == alone


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(UserError, match="language 'xx' is unknown"):
        split("Text.", "xx")


def test_the_splitter_says_what_it_is() -> None:
    splitter = sentences.splitter()
    assert splitter["name"] == "sentencex"
    assert splitter["version"].startswith("1.")
    assert splitter["rules"]


# Real text ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def figures():
    """benchmarks/sentences.py."""
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "sentences.py"
    spec = importlib.util.spec_from_file_location("sentence_figures", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_books_have_few_long_sentences(figures, real_data: Path, tmp_path: Path) -> None:
    """The remaining cases are sentences by authors before 1900: see docs/data_reference.md."""
    (archive,) = (real_data / "books").glob("*.tar.xz")
    with tarfile.open(archive, "r:xz") as members:
        members.extractall(tmp_path, filter="data")
    spec = parse_source(f"books:{tmp_path}")
    parts = figures.measure(spec, find(spec).files[::2])
    whole = figures.total(parts)
    shares = sorted(part.share("ours long") for part in parts.values())
    assert shares[len(shares) // 2] <= 0.01
    assert whole.share("ours long") < 0.025
    assert whole.share("alone long") > 0.05
    assert whole.share("changed", "lines") <= 0.005
    assert whole.counts["plain changed"] == 0


@pytest.mark.slow
def test_wikipedia_is_no_worse(figures, real_wiki_files: list[Path]) -> None:
    spec = parse_source(f"wikiextractor:{real_wiki_files[0].parent}")
    whole = figures.total(figures.measure(spec, real_wiki_files))
    assert whole.share("ours long") <= 0.001 <= whole.share("alone long")
    assert whole.share("changed", "lines") <= 0.005
    assert whole.counts["plain changed"] == 0


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", 'The song "Help! I Need Somebody" is old.'),
        ("hi", 'गीत "मदद। मुझे चाहिए" पुराना है।'),
        ("ar", 'الأغنية "ما هذا؟ هذا كتاب" قديمة.'),
        ("am", 'ዘፈኑ "ይህ ነው። ያ ነው" አሮጌ ነው።'),
    ],
)
def test_a_title_with_an_end_mark_of_any_script_is_one_piece(language: str, text: str) -> None:
    assert sentences.split(text, language) == [text]
