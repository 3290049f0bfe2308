"""The build: bytes independent of workers, resuming, the held-out split, counts, warnings."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from bert_jax import cli
from bert_jax.data_pipeline.sources import SourceSpec, find, parse_source, read
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build import build, units, working_folder
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.store_build.digests import FileDigests
from bert_jax.data_pipeline.store_build.held_out_documents import held_out_count
from bert_jax.data_pipeline.store_build.shard import raw_hash
from bert_jax.data_pipeline.store_build.shard_files import Unit, damage
from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer
from bert_jax.data_pipeline.text import sentences
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])


def sentences_of(number: int) -> list[str]:
    return [f"w{'xyz'[i % 3]} {LETTERS[number % 26]}{LETTERS[number // 26]}." for i in range(3)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Six files of ten documents of three sentences, one document of punctuation in each."""
    folder = tmp_path / "text"
    folder.mkdir()
    for file in range(6):
        documents = ["\n".join(sentences_of(file * 10 + i)) for i in range(10)]
        (folder / f"{file}.txt").write_text("\n\n".join([*documents, "\u2060\n\u2060"]) + "\n")
    return folder


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard per file."""
    monkeypatch.setattr(units, "_UNIT_BYTES", 1)


def made(
    source: str | list[SourceSpec], out: Path, *, workers: int = 1, **options: float
) -> TokenStore:
    specs = [parse_source(source)] if isinstance(source, str) else source
    return build_store(specs, TOKENIZER, out, workers=workers, progress=False, **options)


def planned(spec: SourceSpec, tokenizer: Tokenizer = TOKENIZER) -> list[Unit]:
    work = Path("work")
    return units.plan_units([spec], [find(spec)], tokenizer, work, FileDigests(work)).units


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def decoded(store: TokenStore, split: str) -> list[list[list[int]]]:
    """The documents of a split as lists of sentences of ids."""
    arrays = getattr(store, split)
    ends = np.cumsum(arrays.sentence_lengths)
    sentences = [part.tolist() for part in np.split(arrays.tokens, ends[:-1])]
    parts = np.split(np.arange(len(sentences)), np.cumsum(arrays.document_lengths)[:-1])
    return [[sentences[i] for i in part] for part in parts]


def test_every_document_is_there_once_in_order(text: Path, tmp_path: Path) -> None:
    store = made(f"lines:{text}", tmp_path / "store", held_out_share=0.2)
    wanted = [[ids.tolist() for ids in TOKENIZER.encode_batch(sentences_of(n))] for n in range(60)]
    train, held_out = decoded(store, "train"), decoded(store, "held_out")
    assert (len(train), len(held_out)) == (48, 12)
    assert train == [d for d in wanted if d in train]
    assert held_out == [d for d in wanted if d not in train]
    counts = np.bincount(store.train.tokens, minlength=TOKENIZER.vocab_size)
    assert np.array_equal(store.train.token_counts, counts)


def test_the_manifest_counts_what_was_found_and_dropped(text: Path, tmp_path: Path) -> None:
    entry = made(f"lines:{text}", tmp_path / "store").manifest["sources"][0]
    assert entry["files"] == 6
    assert entry["documents"] == 66
    assert entry["dropped"] == {"documents": 6, "sentences": 0}
    assert entry["rules"] == {"invisible_character": 12}
    assert sum(split["documents"] for split in entry["splits"].values()) == 60
    assert sum(split["sentences"] for split in entry["splits"].values()) == 180
    assert sum(split["words"] for split in entry["splits"].values()) == 360
    assert entry["warnings"] == []
    assert not (tmp_path / ".store.building").exists()


def test_sentences_that_tokenize_to_nothing_are_dropped(tmp_path: Path) -> None:
    # U+E000 is private use: neither a letter nor punctuation; BERT's clean_text removes it.
    (tmp_path / "a.txt").write_text("One.\n\ue000\nTwo.\n\nThree.\n\nFour.\n\nFive.\n")
    store = made(f"lines:{tmp_path / 'a.txt'}", tmp_path / "store")
    (source,) = store.manifest["sources"]
    assert source["dropped"] == {"documents": 0, "sentences": 1}
    assert sum(split["words"] for split in source["splits"].values()) == 5
    wanted = [["One.", "Two."], ["Three."], ["Four."], ["Five."]]
    found = decoded(store, "train") + decoded(store, "held_out")
    encoded = ([ids.tolist() for ids in TOKENIZER.encode_batch(text)] for text in wanted)
    assert sorted(found) == sorted(encoded)


def test_one_and_two_workers_write_the_same_bytes(text: Path, tmp_path: Path) -> None:
    made(f"lines:{text}", tmp_path / "one")
    made(f"lines:{text}", tmp_path / "two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_held_out_documents_are_the_smallest_hashes_whatever_the_tokenizer(
    text: Path, tmp_path: Path
) -> None:
    store = made(f"lines:{text}", tmp_path / "store", held_out_share=0.1)
    raw = ["\n".join(sentences_of(n)) for n in range(60)] + ["\u2060\n\u2060"]
    smallest = sorted(raw, key=raw_hash)[:6]
    wanted = [r for r in raw[:60] if r in smallest]
    assert decoded(store, "held_out") == [
        [ids.tolist() for ids in TOKENIZER.encode_batch(r.split("\n"))] for r in wanted
    ]


@pytest.mark.parametrize(
    ("documents", "share", "held_out"),
    [
        (0, 0.01, 0), (1, 0.01, 0), (2, 0.01, 1), (3, 0.5, 1), (4, 0.01, 2), (1000, 0.01, 10),
        (0, None, 0), (1, None, 0), (3, None, 1), (40, None, 2), (100, None, 5), (399, None, 19),
        (400, None, 20), (2000, None, 20), (5000, None, 50),
    ],
)  # fmt: skip
def test_held_out_count(documents: int, share: float | None, held_out: int) -> None:
    assert held_out_count(documents, share) == held_out


def test_a_tokenizer_that_lower_cases_is_not_cased_whatever_its_name(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TOKENIZER.save(tmp_path / "entries")
    words = [f"--source=lines:{text}", f"--tokenizer={tmp_path / 'entries'}", "--cased"]
    assert cli.main(["data", "build", *words, f"--out={tmp_path / 'store'}"]) == 2
    assert f"--cased: {tmp_path / 'entries'} lower-cases text" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_the_only_document_with_text_stays_in_training(tmp_path: Path) -> None:
    """Also beside documents of which nothing is left, whatever their hashes."""
    for number in range(6):
        (tmp_path / f"{number}.jsonl").write_text(
            json.dumps({"text": f"doc a {number}."}) + "\n" + json.dumps({"text": ""}) + "\n"
        )
        store = made(f"jsonl:{tmp_path / f'{number}.jsonl'}", tmp_path / f"store{number}")
        assert len(store.train.document_lengths) == 1
        assert not len(store.held_out.document_lengths)


def test_equal_texts_of_two_sources_stay_on_one_side(tmp_path: Path) -> None:
    """Also where one source has few texts, of which all stay in training if none would be left."""
    texts = sorted((f"{letter} b c." for letter in LETTERS), key=raw_hash)
    for name, chosen in (("all", texts), ("some", texts[:13]), ("few", texts[:2])):
        (tmp_path / name).mkdir()
        for number, text in enumerate(chosen):
            (tmp_path / name / f"{number}.txt").write_text(text)
    sources = [parse_source(f"books:{tmp_path / n},name={n}") for n in ("few", "some", "all")]
    store = build_store(sources, TOKENIZER, tmp_path / "store", held_out_share=0.5)
    parts = {split: {str(d) for d in decoded(store, split)} for split in ("train", "held_out")}
    assert len(parts["held_out"]) > 10
    assert not parts["train"] & parts["held_out"]
    assert {*store.train.document_source.tolist()} == {0, 1, 2}


def test_equal_texts_stay_on_one_side(tmp_path: Path) -> None:
    texts = ["\n".join(sentences_of(n)) for n in range(8)] * 2
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    store = made(f"lines:{tmp_path / 'a.txt'}", tmp_path / "store", held_out_share=0.25)
    train, held_out = decoded(store, "train"), decoded(store, "held_out")
    assert (len(train), len(held_out)) == (12, 4)
    assert not [document for document in held_out if document in train]


def test_sources_and_languages_of_documents(text: Path, tmp_path: Path) -> None:
    book = tmp_path / "b.txt"
    book.write_text(
        "".join(f"CHAPTER {i}\n\nEin Satz {LETTERS[i]}. Noch einer.\n\n" for i in range(1, 7))
    )
    specs = [parse_source(f"lines:{text},name=en"), parse_source(f"books:{book},lang=de,name=de")]
    store = made(specs, tmp_path / "store")
    assert (store.sources, store.languages) == (("en", "de"), ("de", "en"))
    source = store.train.document_source
    assert np.array_equal(store.train.document_language, 1 - source)
    assert np.bincount(source).tolist() == [57, 4]
    assert np.bincount(store.held_out.document_source).tolist() == [3, 2]


def test_a_finished_store_is_reused_and_another_refused(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"lines:{text}"
    made(source, tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(build, "run", None)  # nothing is built
        made(source, tmp_path / "store")
    with pytest.raises(UserError, match="other text, tokenizer or settings"):
        made(source, tmp_path / "store", held_out_share=0.2)
    (text / "0.txt").write_text("Changed.\n\nText.\n")
    with pytest.raises(UserError, match="other text, tokenizer or settings"):
        made(source, tmp_path / "store")
    with pytest.raises(UserError, match="text: is the input, which it would replace"):
        made(source, text)


def test_a_shard_is_named_by_its_inputs_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no store or interrupted build of an earlier version would be known again."""
    splitter = {"name": "sentencex", "version": "1.0", "rules": 2}
    monkeypatch.setattr(units, "splitter", lambda: splitter)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.22")
    (tmp_path / "a.txt").write_text("One.\n")
    (unit,) = planned(spec := parse_source(f"lines:{tmp_path}"))
    inputs = [
        [units.BUILD_VERSION, [splitter, "0.22"], TOKENIZER.digest],
        [["lines", spec.name, spec.language, spec.document_lines]],
        [[["a.txt", hashlib.sha256(b"One.\n").hexdigest()]]],
    ]
    text = json.dumps([part for group in inputs for part in group])
    assert unit.shard.name == hashlib.sha256(text.encode()).hexdigest()


def test_finished_shards_are_kept_and_those_of_another_tokenizer_are_not(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    shard = build.build_shard

    def counted(unit: Unit, report: object) -> None:
        built.append(unit.ranges[0].path.name)
        if len(built) == 3:
            raise KeyboardInterrupt
        shard(unit, report)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "build_shard", counted)
    with pytest.raises(KeyboardInterrupt):
        made(f"lines:{text}", tmp_path / "store")
    spec, other = parse_source(f"lines:{text}"), Tokenizer.from_vocab([*SPECIAL_TOKENS, "a"])
    jobs = [
        dataclasses.replace(
            unit, shard=tmp_path / ".store.building" / unit.shard.relative_to("work")
        )
        for unit in planned(spec, other)
    ]
    assert all(map(damage, jobs))
    made(f"lines:{text}", tmp_path / "store")
    assert built == ["0.txt", "1.txt", "2.txt", *(f"{i}.txt" for i in range(2, 6))]


def test_another_splitter_is_another_store(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"lines:{text}"
    spec = parse_source(source)
    unchanged = planned(spec)
    store = made(source, tmp_path / "store")
    assert store.manifest["sources"][0]["splitter"] == sentences.splitter()
    monkeypatch.setattr(sentences, "_RULES", "another")
    assert sentences.splitter()["rules"] == "another"
    shards = {job.shard for job in planned(spec)}
    assert not shards & {job.shard for job in unchanged}
    with pytest.raises(UserError, match="other text, tokenizer or settings"):
        made(source, tmp_path / "store")


def test_shards_of_other_cleaning_rules_are_not_taken_up(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"lines:{text}"
    spec, now = parse_source(source), units.BUILD_VERSION
    monkeypatch.setattr(units, "BUILD_VERSION", now - 1)
    before = {unit.shard for unit in planned(spec)}
    made(source, tmp_path / "store")
    monkeypatch.setattr(units, "BUILD_VERSION", now)
    assert not before & {unit.shard for unit in planned(spec)}
    with pytest.raises(UserError, match=rf"settings: the version \({now - 1}, now {now}\); remove"):
        made(source, tmp_path / "store")


def test_a_rule_that_takes_much_of_a_source_is_named_with_its_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, line = "a heading here", "Of the text one hundred characters stay, " + "a" * 58 + "."
    assert (len(head) + 1, len(line)) == (15, 100)
    many, few = [line, head] * 3 + [line], [line] * 6 + [head]
    block = '<doc id="1" url="u" title="{}">\n{}\n</doc>\n'
    specs = []
    for name, lines in {"many": many, "few": few}.items():
        folder = tmp_path / name
        folder.mkdir()
        texts = ["\n".join([f"Text {letter} is.", *lines]) for letter in LETTERS[:5]]
        (folder / "wiki_00").write_text("".join(block.format("T", text) for text in texts))
        specs.append(parse_source(f"wikiextractor:{folder},name={name}"))
    store = build_store(specs, TOKENIZER, tmp_path / "store", workers=1, progress=True)
    entries = store.manifest["sources"]
    taken = 3 * 15
    assert entries[0]["rules_taking_much"]["heading"] == taken / (10 + 4 * 101 + taken)
    assert "rules_taking_much" not in entries[1]
    shown = capsys.readouterr().err
    assert "many: share of the text that a rule takes: heading 9.8%" in shown
    assert "few: share" not in shown


KILL = """
import os, signal, sys, threading, time
from multiprocessing import active_children
from pathlib import Path
from bert_jax.data_pipeline.store_build import build, units
from bert_jax.errors import UserError
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

def kill(work):
    while not list((work / "shards").glob("*/summary.json")):
        time.sleep(0.001)
    os.kill(active_children()[0].pid, signal.SIGKILL)

if __name__ == "__main__":
    text, tokenizer, out = map(Path, sys.argv[1:])
    units._UNIT_BYTES = 1
    threading.Thread(target=kill, args=(out.parent / f".{out.name}.building",), daemon=True).start()
    try:
        source = parse_source(f"lines:{text}")
        build.build_store([source], Tokenizer.load(tokenizer), out, workers=2, progress=False)
    except UserError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_after_a_killed_worker_the_build_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for file in range(60):
        documents = ("\n".join(sentences_of(file * 9 + i)) for i in range(9))
        (text / f"{file:02}.txt").write_text("\n\n".join(documents) * 40)
    TOKENIZER.save(tmp_path / "tokenizer.json")
    (tmp_path / "kill.py").write_text(KILL)
    command = [sys.executable, "kill.py", text, tmp_path / "tokenizer.json", tmp_path / "store"]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    said = subprocess.check_output(command, text=True, cwd=tmp_path, env=environment)
    assert "a worker process died" in said
    left = list((tmp_path / ".store.building/shards").glob("*/summary.json"))
    assert 0 < len(left) < 60
    made(f"lines:{text}", tmp_path / "store")
    made(f"lines:{text}", tmp_path / "clean")
    assert contents(tmp_path / "store") == contents(tmp_path / "clean")


def test_two_builds_of_one_store_do_not_mix(text: Path, tmp_path: Path) -> None:
    working_folder.claim(tmp_path / ".store.building")
    with (
        working_folder.locked(tmp_path / ".store.building"),
        pytest.raises(UserError, match="another build is running"),
    ):
        made(f"lines:{text}", tmp_path / "store")


def test_warnings_are_shown_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"Line {c}.\n" for c in LETTERS))
    manifest = made(f"lines:{tmp_path / 'a.txt'},lines=10", tmp_path / "store").manifest
    cut, few = manifest["sources"][0]["warnings"]
    assert cut == (
        "1 file with no blank lines between documents (such as a.txt): "
        "cut into 3 documents of 10 lines; put a blank line between documents, or choose another "
        "length with ,lines=N in --source"
    )
    assert few.startswith("only 3 documents with text")
    shown = capsys.readouterr().err
    assert cut in shown
    assert few in shown


@pytest.mark.parametrize(("long", "warned"), [(60, True), (1, False)])
def test_much_text_that_is_held_out_is_a_warning(long: int, warned: bool, tmp_path: Path) -> None:
    """Two of ten documents are held out, one of them long."""
    (tmp_path / "text").mkdir()
    for name in "abcdefghij":
        sentences = sentences_of(1) * (long if name in "dg" else 1)
        (tmp_path / f"text/{name}.txt").write_text("\n".join([*sentences, name]) + "\n")
    store = made(f"lines:{tmp_path / 'text'}", tmp_path / "store")
    held_out, train = (len(split.tokens) for split in (store.held_out, store.train))
    warning = (
        f"{held_out / (held_out + train):.0%} of the tokens are held out, because documents are "
        "held out as a whole; more and shorter ones leave more text to train on: put a blank line "
        "between documents, or add ,lines=N to --source"
    )
    assert store.manifest["sources"][0]["warnings"] == ([warning] if warned else [])


def test_a_source_that_yields_nothing(text: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\u200b\n\n")
    specs = [parse_source(f"lines:{text}"), parse_source(f"lines:{tmp_path}/empty.txt,name=none")]
    with pytest.raises(UserError, match="source 'none': no text left of 1 document in 1 file "):
        made(specs, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_bad_settings(text: Path, tmp_path: Path) -> None:
    spec = parse_source(f"lines:{text}")
    with pytest.raises(UserError, match="2 sources are named 'lines'"):
        made([spec, spec], tmp_path / "store")
    with pytest.raises(UserError, match="no source of text"):
        made([], tmp_path / "store")
    with pytest.raises(UserError, match=r"between 0 and 0\.5"):
        made([spec], tmp_path / "store", held_out_share=0.7)


def test_a_tokenizer_is_trained_on_cleaned_text_of_all_sources(text: Path, tmp_path: Path) -> None:
    book = tmp_path / "b.md"
    book.write_text("## Chapter 1\n\nGreek _λόγος_ &amp; more.\n")
    specs = [parse_source(f"lines:{text}"), parse_source(f"books:{book}")]
    tokenizer = train_tokenizer(specs, 100)
    entries = json.loads(tokenizer.json)["model"]["vocab"]
    assert {"λ", "&", "##b"} <= entries.keys()
    assert "_" not in entries
    assert train_tokenizer(specs, 100).digest == tokenizer.digest


def test_training_samples_documents_above_a_size(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def train(texts: object, *_: object, **__: object) -> None:
        taken.extend(texts)  # type: ignore[call-overload]

    monkeypatch.setattr(Tokenizer, "train", train)
    spec = parse_source(f"lines:{text}")
    train_tokenizer([spec], 100)
    everything = len(taken)
    taken.clear()
    train_tokenizer([spec], 100, most_bytes=sum(p.stat().st_size for p in text.iterdir()) // 2)
    assert everything == 66
    assert 15 < len(taken) < 51


@pytest.mark.slow
def test_real_text_loses_residue_and_little_else(tmp_path: Path) -> None:
    data = os.environ.get("BERT_JAX_REAL_DATA")
    if not data:
        pytest.skip("BERT_JAX_REAL_DATA is unset")
    wanted = {
        "wikipedia/enwiki-featured-wikiextractor.tar.xz": "wiki_00",
        "books/books-pre1900-markdown.tar.xz": "Silver Blaze.md",
    }
    for archive, name in wanted.items():
        with tarfile.open(Path(data) / archive) as tar:
            member = next(m for m in tar if Path(m.name).name == name)
            (tmp_path / name).write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
    specs = [
        parse_source(f"wikiextractor:{tmp_path}/wiki_00"),
        parse_source(f"books:{tmp_path}/Silver Blaze.md"),
        parse_source(f"lines:{data}/vocab/sample_text.txt"),
    ]
    tokenizer = Tokenizer.load(Path(data) / "vocab/bert-base-uncased-vocab.txt")
    store = build_store(specs, tokenizer, tmp_path / "store", workers=1, progress=False)
    wiki, book, sample = store.manifest["sources"]
    assert (wiki["documents"], sample["documents"]) == (25, 3)
    assert wiki["rules"]["formula"] == 12
    assert wiki["characters"] > 0.99 * sum(
        len(d.text) for d in read(specs[0], tmp_path / "wiki_00")
    )
    assert "only" in book["warnings"][-1]
    unknown = store.train.token_counts[store.special.unk] / len(store.train.tokens)
    assert unknown < 0.001
