"""`data inspect` and `data batch`: counts, decoded examples, the batch of a training step."""

import dataclasses
import html
import json
import re
import shlex
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from corpus import small_config, small_store
from hypothesis import given
from hypothesis import strategies as st
from stores import StoredDocument, write_store

import bert_jax
from bert_jax import cli, exit_codes
from bert_jax.commands.command import parse
from bert_jax.config.config_files import read_config
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline.analysis.inspect import (
    ExampleCounts,
    Lengths,
    Vocabulary,
    count_examples,
    count_groups,
    decode,
)
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, SpecialIds, Tokenizer
from bert_jax.errors import UserError
from bert_jax.reporting import batch_view
from bert_jax.training.batches import phase_batches
from bert_jax.training.loop import pretrain
from bert_jax.workdir import description as workdir
from bert_jax.workdir.layout import Workdir

SPECIAL = SpecialIds(0, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("inspect") / "store")


def test_groups_count_each_source_and_language(tmp_path: Path) -> None:
    unknown = SPECIAL.unk
    store = write_store(
        tmp_path / "s",
        tokenizer=Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abc"]),
        train=[
            StoredDocument([[5, unknown], [6]], source=1, language=1),
            StoredDocument([[5]], source=0, language=0),
            StoredDocument([[unknown, unknown, 7]], source=1, language=0),
            StoredDocument([[7], [unknown]], source=1, language=1),
        ],
        sources=("wiki", "books"),
        languages=("de", "en"),
    )
    found = [dataclasses.astuple(group) for group in count_groups(store, store.train)]
    assert found == [
        ("wiki", "de", 1, 1, 1, 0),
        ("books", "de", 1, 1, 3, 2),
        ("books", "en", 2, 4, 5, 2),
    ]
    assert count_groups(store, store.held_out) == []


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=50), st.floats(0, 1))
def test_lengths_are_those_of_a_sorted_list(values: list[int], share: float) -> None:
    lengths = Lengths(np.bincount(values))
    ordered = sorted(values)
    assert lengths.total == len(values)
    assert lengths.mean == pytest.approx(sum(values) / len(values))
    wanted = next(v for i, v in enumerate(ordered, 1) if i >= share * len(values))
    assert lengths.quantile(share) == wanted
    bins = lengths.bins(8)
    assert len(bins) <= 9
    assert (bins[0][0], bins[-1][1]) == (ordered[0], ordered[-1])
    assert all(a[1] + 1 == b[0] for a, b in pairwise(bins))
    assert [sum(low <= v <= high for v in values) for low, high, _ in bins] == [n for *_, n in bins]


def packed_batch() -> dict[str, np.ndarray]:
    """Two rows of ten places: one of two examples with a pair each, one of one; with spans."""
    cls, sep, mask = SPECIAL.cls, SPECIAL.sep, SPECIAL.mask
    return {
        "input_ids": np.array(
            [[cls, mask, 6, sep, cls, 9, 6, 8, sep, 0], [cls, 7, 6, mask, sep, 0, 0, 0, 0, 0]]
        ),
        "example_ids": np.array([[1] * 4 + [2] * 5 + [0], [1] * 5 + [0] * 5]),
        "masked_positions": np.array([[1, 5, 7], [3, 0, 0]]),
        "masked_labels": np.array([[5, 9, 6], [8, 0, 0]]),
        "masked_weights": np.array([[1, 1, 1], [1, 0, 0]], np.float32),
        "pair_labels": np.array([[1, 0], [1, 0]]),
        "pair_weights": np.array([[1, 1], [1, 0]], np.float32),
        "pair_sources": np.array([[0, 1], [1, 0]]),
        "span_left": np.array([[0, 4, 6], [2, 0, 0]]),
        "span_right": np.array([[2, 6, 8], [4, 0, 0]]),
        "span_weights": np.array([[1, 0, 0], [1, 0, 0]], np.float32),
    }


def vocabulary() -> Vocabulary:
    entries = [*SPECIAL_TOKENS, "cat", "##s", "mats", "dog", "a\x1b"]
    return Vocabulary(Tokenizer.from_vocab(entries), SPECIAL)


def test_what_rows_hold_is_counted() -> None:
    counts = ExampleCounts(sources=2, mask_id=SPECIAL.mask)
    padding = {name: np.zeros_like(array) for name, array in packed_batch().items()}
    for batch in (packed_batch(), padding, packed_batch()):
        counts.add(batch)
    assert (counts.rows, counts.slots, counts.tokens, counts.examples) == (4, 40, 28, 6)
    assert counts.lengths.tolist() == [0, 0, 0, 0, 2, 4]
    assert (counts.predicted, counts.masked, counts.random, counts.kept) == (8, 4, 2, 2)
    assert counts.predictions.tolist() == [0, 4, 2]
    assert counts.labels is not None
    assert counts.labels.tolist() == [[0, 2], [2, 2]]


def test_without_pairs_nothing_is_said_of_labels() -> None:
    counts = ExampleCounts(sources=2, mask_id=SPECIAL.mask)
    counts.add({k: v for k, v in packed_batch().items() if not k.startswith(("pair", "span"))})
    assert counts.labels is None
    assert counts.examples == 3


def test_decoded_examples_show_what_became_of_each_token() -> None:
    first, second, third = decode(packed_batch(), vocabulary(), [0, 7])
    assert [(e.row, e.number, e.label, e.source) for e in (first, second, third)] == [
        (0, 1, 1, 0), (0, 2, 0, 1), (7, 1, 1, 1)
    ]  # fmt: skip
    assert [(t.text, t.kind, t.original) for t in first.tokens] == [
        ("[CLS]", "special", ""), ("[MASK]", "masked", "cat"), ("##s", "plain", ""),
        ("[SEP]", "special", ""),
    ]  # fmt: skip
    assert [(t.text, t.kind, t.original) for t in second.tokens[1:4]] == [
        ("a\ufffd", "kept", "a\ufffd"), ("##s", "plain", ""), ("dog", "random", "##s")
    ]  # fmt: skip
    assert [(t.text, t.space) for t in third.tokens[1:3]] == [("mats", True), ("s", False)]
    assert [t.edge for t in first.tokens] == [True, False, True, False]
    assert not any(t.edge for t in second.tokens)
    assert [t.edge for t in third.tokens] == [False, False, True, False, True]
    assert (first.predictions, second.predictions) == (1, 2)


def test_sentencepiece_entries_are_joined_at_their_mark() -> None:
    words = Vocabulary(Tokenizer.from_vocab([*SPECIAL_TOKENS, "▁the", "se", "▁"]), SPECIAL)
    assert [words.plain(i) for i in (5, 6, 7)] == [("the", True), ("se", False), ("▁", True)]
    assert words.plain(SPECIAL.cls) == ("[CLS]", True)


def test_byte_level_entries_are_shown_as_characters() -> None:
    text = "the caf\u00e9 \u2019s"
    tokenizer = Tokenizer.train([text] * 9, 300, model="byte_bpe")
    words = Vocabulary(tokenizer, tokenizer.special)
    ids = tokenizer.encode_batch([text])[0].tolist()
    shown = [words.plain(i) for i in ids]
    joined = "".join(" " * space + piece for piece, space in shown).strip()
    assert joined.startswith("the caf")
    assert "\u00c3" not in joined
    assert any(words.entries[i] == "\u0120the" for i in ids)
    assert words.plain(tokenizer.special.cls) == ("[CLS]", True)
    of_bytes = {tokenizer.token(i): words.plain(i) for i in range(tokenizer.vocab_size)}
    assert of_bytes["\u0120caf\u00c3\u00a9"] == ("caf\u00e9", True)
    assert of_bytes["\u00c3"] == ("\ufffd", False)


def test_an_epoch_counts_every_row_once(store: TokenStore) -> None:
    config = small_config(store)
    batches = phase_batches(config, store, store.train, config.phases[0])
    counts = count_examples(store, batches, 1 << 30)
    assert counts.rows == counts.examples == batches.rows_per_epoch
    assert counts.slots == batches.rows_per_epoch * 32
    assert counts.labels is not None
    assert counts.labels.sum() == counts.examples
    few = count_examples(store, batches, 1)
    assert few.rows == config.phases[0].batch_size < counts.rows


def overrides(config: Config) -> list[str]:
    """The data and phase of a config as flags on top of `base`."""
    values = flatten(to_dict(config))
    keys = ("phases[0].steps", "phases[0].batch_size", "phases[0].seq_length",
            "phases[0].max_predictions")  # fmt: skip
    return [f"--config.{key}={values[key]}" for key in keys]


class Reader(HTMLParser):
    """Text and tags of a page; fails if tags do not nest."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        if tag not in {"meta", "path", "use", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"path", "use", "rect"}:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_verb_shows_counts_and_examples_and_writes_a_page(store, tmp_path, capsys) -> None:
    page = tmp_path / "page.html"
    words = ["data", "inspect", f"--store={store.path}", *overrides(small_config(store))]
    assert cli.main([*words, "--examples=2", f"--html={page}"]) == exit_codes.DONE
    out = capsys.readouterr().out
    for told in ("wiki", "books", f"{len(store.train.document_lengths) // 2}", "fill", "bigram"):
        assert told in out
    assert out.count("[CLS]") == 2
    assert "[MASK]→w" in out
    assert "sentences: tokens per sentence" in out
    quality = (
        rf"held-out text\W+8 documents, {len(store.held_out.tokens)} tokens",
        r"\[UNK\]\W+0\.",
    )
    for told in (*quality, "little held-out text", "under 64 tokens"):
        assert re.search(told, out)
        assert re.search(told, re.sub(r"<[^>]+>", " ", page.read_text()))
    reader = Reader()
    text = page.read_text()
    reader.feed(text)
    assert not reader.open
    assert text.count("<svg") == 4
    assert text.count('class="example"') == 2
    assert "<script" not in text


def test_the_page_names_the_command_that_trains_on_these_examples(store, tmp_path) -> None:
    page, config = tmp_path / "page.html", small_config(store)
    words = ["data", "inspect", f"--store={store.path}", *overrides(config)]
    words += ["--config.data.source_weights=wiki=2,books=1", f"--html={page}"]
    assert cli.main(words) == exit_codes.DONE
    shown = re.search("<pre><code>(.*?)</code>", page.read_text(), re.DOTALL)
    typed = shlex.split(html.unescape(re.sub("<.*?>", "", shown[1])))
    flags = typed[typed.index("pretrain") + 1 :]
    values, _ = parse("pretrain", cli.COMMANDS["pretrain"], flags)
    trained = read_config(values)
    assert trained.phases == config.phases
    assert trained.data.source_weights == "wiki=2,books=1"
    assert trained.data.store == str(store.path)


def test_a_program_gets_a_page_without_a_command(store, tmp_path) -> None:
    config = small_config(store)
    bert_jax.inspect(store, config, examples=1, html=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "of a program, phase 1 of 1" in text
    assert "What to do next" not in text


def test_sentences_that_single_leaves_out_are_counted(store, capsys) -> None:
    words = ["data", "inspect", f"--store={store.path}", *overrides(small_config(store))]
    words += ["--config.data.pairing=single", "--config.phases[0].seq_length=8"]
    assert cli.main(words) == exit_codes.DONE
    long = store.train.sentence_lengths[store.train.sentence_lengths > 6]
    (line,) = [li for li in capsys.readouterr().out.splitlines() if "sentences dropped" in li]
    assert f" {len(long)} " in line
    assert f" {long.sum():,} tokens" in line


def test_a_second_text_out_of_order_may_be_a_random_one(store, capsys) -> None:
    words = ["data", "inspect", f"--store={store.path}", *overrides(small_config(store))]
    assert cli.main([*words, "--config.data.pairing=sop", "--examples=8"]) == exit_codes.DONE
    out = capsys.readouterr().out
    assert out.count("swapped") == out.count("swapped or random") > 1


def test_no_text_of_the_corpus_breaks_the_page(tmp_path, capsys) -> None:
    evil = ["</p><script>", "a&b", "{title}", "<!--", "]]>", '"', "[bold]x", "$x^", "%s", "\u202e"]
    rng = np.random.default_rng(0)
    documents = [
        StoredDocument([rng.integers(5, 5 + len(evil), 9).tolist() for _ in range(4)])
        for _ in range(6)
    ]
    store = write_store(
        tmp_path / "s",
        tokenizer=Tokenizer.from_vocab([*SPECIAL_TOKENS, *evil]),
        train=documents,
        held_out=documents[:2],
        sources=("[red]<i>$a",),
    )
    page = tmp_path / "page.html"
    words = ["data", "inspect", f"--store={store.path}", *overrides(small_config(store))]
    assert cli.main([*words, f"--html={page}"]) == exit_codes.DONE
    reader = Reader()
    reader.feed(page.read_text())
    assert not reader.open
    assert not reader.tags & {"script", "i", "bold"}
    shown = "".join(reader.words)
    for word in evil[:-1]:
        assert word in shown
    assert "\u202e" not in shown
    assert "[bold]x" in capsys.readouterr().out
    assert cli.main([*words, "--examples=0"]) == exit_codes.DONE
    assert "[red]<i>$a" in capsys.readouterr().out


def test_no_more_examples_are_shown_than_held_out_rows(tmp_path: Path, capsys) -> None:
    documents = [StoredDocument([[5, 6, 7]] * 3) for _ in range(6)]
    store = write_store(
        tmp_path / "s",
        tokenizer=Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abc"]),
        train=documents,
        held_out=documents[:2],
    )
    config = small_config(store)
    rows = phase_batches(config, store, store.held_out, config.phases[0]).rows_per_epoch
    assert rows < config.phases[0].batch_size
    bert_jax.inspect(store, config, split="held_out", examples=20)
    assert len(re.findall(r"^row \d+", capsys.readouterr().out, re.MULTILINE)) == rows


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--phase=1", "has phases 0 to 0"),
        ("--config.data.maskin=token", "did you mean data.masking?"),
        ("--html=/proc/nowhere/page.html", "no such folder /proc/nowhere"),
        ("--html=/proc", "/proc: is a folder; give the name of a file"),
        ("--html=/proc/page.html", "cannot be written"),
    ],
)
def test_a_wrong_flag_is_one_line(flag: str, line: str, store: TokenStore, capsys) -> None:
    words = ["data", "inspect", f"--store={store.path}", *overrides(small_config(store)), flag]
    assert cli.main(words) == (
        exit_codes.STORAGE if line == "cannot be written" else exit_codes.FAILED
    )
    assert line in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture(scope="module")
def seen(store, tmp_path_factory) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """A small run, and every batch its trainer was fed, by step."""
    fed: list[dict[str, np.ndarray]] = []
    original = Batches.batch

    def record(self, step, rows=None):
        made = original(self, step, rows)
        if rows is None or len(rows):
            lines = range(8) if rows is None else rows
            while len(fed) <= step:
                fed.append({})
            for name, array in made.items():
                whole = fed[step].setdefault(name, np.zeros((8, *array.shape[1:]), array.dtype))
                whole[list(lines)] = array
        return made

    folder = tmp_path_factory.mktemp("run")
    config = small_config(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "batch", record)
        pretrain(config, folder)
    assert len(fed) == config.total_steps
    return folder, fed


@pytest.mark.parametrize("step", [0, 5, 11])
def test_a_batch_is_the_one_the_trainer_was_fed(step, seen, tmp_path, capsys) -> None:
    run, fed = seen
    out = tmp_path / "batch.npz"
    assert cli.main(["data", "batch", f"--workdir={run}", f"--step={step}", f"--out={out}"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("[CLS]") == 4
    assert "row 3" in shown
    arrays = np.load(out)
    assert set(arrays) == set(fed[step])
    for name, array in fed[step].items():
        assert np.array_equal(arrays[name], array), name


def test_chosen_rows_are_shown_and_written(seen, tmp_path, capsys) -> None:
    run, fed = seen
    out = tmp_path / "batch.npz"
    words = ["data", "batch", f"--workdir={run}", "--step=3", "--rows=6:8", f"--out={out}"]
    assert cli.main(words) == exit_codes.DONE
    assert re.findall(r"^row \d", capsys.readouterr().out, re.MULTILINE) == ["row 6", "row 7"]
    assert np.array_equal(np.load(out)["input_ids"], fed[3]["input_ids"][6:8])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--step=12"], "this run's 12 steps: give one from 0 to 11"),
        (["--step=0", "--rows=7:9"], "between 0 and 8"),
        (["--step=0", "--rows=x"], "between 0 and 8"),
        (["--step=0", "--rows=3:3"], "between 0 and 8"),
        (["--step=0", "--rows=0:1000000000000000"], "between 0 and 8"),
        (["--step=0", "--store=nowhere"], "nowhere: not a token store"),
    ],
)
def test_a_batch_that_cannot_be_is_one_line(flags, line, seen, capsys) -> None:
    assert cli.main(["data", "batch", f"--workdir={seen[0]}", *flags]) == exit_codes.FAILED
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_another_store_than_the_runs_is_refused(seen, tmp_path, capsys) -> None:
    other = small_store(tmp_path / "other", documents=41)
    words = ["data", "batch", f"--workdir={seen[0]}", "--step=0", f"--store={other.path}"]
    assert cli.main(words) == exit_codes.FAILED
    assert "its train digest is" in capsys.readouterr().err
    renamed = small_store(tmp_path / "renamed", words="v")
    assert cli.main([*words[:-1], f"--store={renamed.path}"]) == exit_codes.FAILED
    assert "its tokenizer digest is" in capsys.readouterr().err


def test_a_store_that_moved_is_given_by_flag(seen, store, tmp_path, capsys) -> None:
    moved = small_store(tmp_path / "moved")
    assert moved.train.digest == store.train.digest
    words = ["data", "batch", f"--workdir={seen[0]}", "--step=0", f"--store={moved.path}"]
    assert cli.main(words) == exit_codes.DONE


def test_a_folder_that_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="no valid config"):
        batch_view.open_run(Workdir.open(tmp_path))
    for text in ("[" * 100_000, '["config", "data"]', '{"config": 1, "data": 2}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match="not the workdir of a run"):
            batch_view.open_run(Workdir.open(tmp_path))
        with pytest.raises(UserError, match="not the workdir of a run"):
            workdir.read_description(Workdir.open(tmp_path))
    (tmp_path / "config.json").write_text('{"config": {}, "data": {"tokenizer": 1, "train": 2}}')
    with pytest.raises(UserError, match="not the workdir of a run"):
        batch_view.open_run(Workdir.open(tmp_path))


def test_a_later_phase_is_found_and_counted_from_its_start(store, tmp_path, capsys) -> None:
    config = small_config(store)
    (first,) = config.phases
    second = dataclasses.replace(first, steps=5, seq_length=16, max_predictions=3, batch_size=4)
    config = dataclasses.replace(config, phases=(first, second))
    assert [config.phase_at(step) for step in (0, 11, 12, 16)] == [(0, 0), (0, 11), (1, 0), (1, 4)]
    for step in (-1, 17):
        with pytest.raises(UserError, match="not one of this run's 17 steps"):
            config.phase_at(step)
    description = workdir.describe(config, store, [1, 1], mesh={"data": 1}, device_kind="cpu")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(json.dumps(description))
    out = tmp_path / "batch.npz"
    words = [f"--workdir={tmp_path}/run", "--step=14", f"--out={out}"]
    assert cli.main(["data", "batch", *words]) == 0
    assert "step 14: step 2 of config.phases[1], 4 rows" in capsys.readouterr().out
    expected = phase_batches(config, store, store.train, second).batch(2)
    assert np.array_equal(np.load(out)["input_ids"], expected["input_ids"])


@pytest.mark.slow
def test_real_text(real_wiki_files, real_books, real_data, tmp_path, capsys) -> None:
    """Built, inspected with a page, and every decoded example is text of the store."""
    folders = {"wikiextractor": real_wiki_files[0].parent, "books": real_books[0].parent.parent}
    tokenizer = Tokenizer.load(real_data / "vocab" / "bert-base-uncased-vocab.txt")
    sources = [parse_source(f"{kind}:{folder}") for kind, folder in folders.items()]
    store = build_store(sources, tokenizer, tmp_path / "store", workers=1, progress=False)
    page = tmp_path / "page.html"
    words = ["data", "inspect", f"--store={store.path}", "--examples=3", f"--html={page}"]
    assert cli.main(words) == exit_codes.DONE
    out = capsys.readouterr().out
    split = store.manifest["sources"][0]["splits"]["train"]
    assert f"{split['tokens']:,}" in out
    reader = Reader()
    reader.feed(page.read_text())
    assert not reader.open
    examples = re.findall(r'<p dir="auto">(.*?)</p>', page.read_text())
    assert len(examples) == 3
    tokens = tokenizer.decode(store.train.tokens[: 1 << 30]).replace(" ", "")
    for example in examples:
        plain = html.unescape(re.sub(r"<span[^>]*>.*?</span>", "\n", example)).replace(" ", "")
        for stretch in plain.replace("##", "").split("\n"):
            assert stretch in tokens
