"""The names of `bert_jax`: configurations, stores from Python objects, batches, runs."""

import itertools
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from corpus import SPECIAL, small_config, small_store, two_phases
from runs import complete_steps
from signals import dispositions

import bert_jax
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store.manifest import read_manifest
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.metrics import run_records
from bert_jax.reporting import html
from bert_jax.runtime import console
from bert_jax.storage import progress
from bert_jax.training.batches import phase_batches
from bert_jax.workdir.layout import Workdir

TEXTS = [
    f"The cat of house {i} sat down. It had {i} toys!\nHouse {i + 1} has no cat." for i in range(30)
]
WORDS = ("one", "two", "three", "half", "pair")
SENTENCES = [
    [f"The cat of house {i} sat down.", f"It had {i} toys!", f"House {i + 1} has no cat."]
    for i in range(30)
]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def build(documents, out: Path, **settings) -> TokenStore:
    return bert_jax.build_store(documents, out, **{"vocab_size": 200, "progress": False} | settings)


def test_every_name_can_be_used_and_none_is_missing():
    assert all(getattr(bert_jax, name).__doc__ for name in bert_jax.__all__)
    assert dir(bert_jax) == bert_jax.__all__
    with pytest.raises(AttributeError, match="'bert_jax' has no attribute 'lod'"):
        _ = bert_jax.lod  # type: ignore[attr-defined]


@pytest.mark.processes
def test_importing_is_cheap_and_config_stays_a_function():
    script = (
        "import sys, bert_jax\n"
        "heavy = {'jax', 'numpy', 'absl', 'tokenizers', 'etils', 'rich'}\n"
        "assert not heavy & set(sys.modules)\n"
        "import bert_jax.config.schema\n"
        "from bert_jax.config import config_files\n"
        "assert bert_jax.config('tiny') == config_files.load('tiny')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_config_has_a_name_or_a_path(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from configs import tiny\n"
        "def get_config():\n"
        "    config = tiny.get_config()\n    config.seed = 5\n    return config\n"
    )
    tiny = bert_jax.config("tiny")
    assert bert_jax.config(tmp_path / "mine.py") == tiny.replace("seed", 5)
    assert bert_jax.config("tiny", {"seed": 5, "phases[0].steps": 3}).total_steps == 3
    with pytest.raises(bert_jax.UserError, match=r"^tinny: neither .* did you mean tiny\?"):
        bert_jax.config("tinny")


def test_values_are_replaced_by_their_keys(tmp_path):
    base = bert_jax.config("wiki_books_base")
    changed = base.replace({"data.store": tmp_path, "phases[1].steps": 10})
    assert changed.data.store == str(tmp_path)
    assert [phase.steps for phase in changed.phases] == [base.phases[0].steps, 10]
    assert base.data.store == ""  # a new object
    assert changed.replace("seed", 3).seed == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.stor": "x"}, "unknown key config.data.stor; did you mean data.store?"),
        ({"phases[1].steps": 1}, "phases[1].steps; did you mean phases[0].steps?"),
        ({"phases[0].steps": "ten"}, "config.phases[0].steps='ten' should be int"),
        ({"model.hidden_size": 100, "model.num_attention_heads": 3}, "is not a multiple of"),
    ],
)
def test_a_wrong_change_is_refused_in_one_line(changes, message):
    with pytest.raises(bert_jax.UserError) as refused:
        bert_jax.config("tiny").replace(changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_documents_are_texts_rows_of_a_data_set_or_lists_of_sentences(tmp_path):
    from_texts = build(TEXTS, tmp_path / "texts")
    from_rows = build(({"id": 1, "text": text} for text in TEXTS), tmp_path / "rows")
    from_lists = build(({"parts": s} for s in SENTENCES), tmp_path / "lists", field="parts")
    assert from_rows.manifest == from_texts.manifest
    for made in (from_texts, from_lists):
        assert made.train.document_lengths.tolist() == [3] * 28
    counts = [s.train.token_counts + s.held_out.token_counts for s in (from_texts, from_lists)]
    np.testing.assert_array_equal(*counts)
    assert sorted(os.listdir(tmp_path)) == ["lists", "rows", "texts"]


def test_a_document_is_stored_as_it_is(tmp_path):
    """Quotes, markup and text that looks like JSON; half a surrogate pair; an empty document."""
    texts = ['{"a": 1} <doc id="2">', "[[1, 2]]", "one\r\ntwo\u2028three", "half \ud800 pair", ""]
    tokenizer = Tokenizer.from_vocab([*SPECIAL, *'{}[]<>=:,"12', "a", "doc", "id", *WORDS])
    made = build(texts, tmp_path / "store", tokenizer=tokenizer, held_out_share=0.0)
    counts = made.train.token_counts + made.held_out.token_counts
    by_token = {tokenizer.token(i): int(count) for i, count in enumerate(counts) if count}
    assert {by_token[word] for word in ("a", "doc", "id", *WORDS)} == {1}
    assert (by_token["{"], by_token["["], by_token["1"], by_token['"']) == (1, 2, 2, 4)
    assert made.manifest["sources"][0]["dropped"]["documents"] == 1


def test_the_same_documents_reuse_the_store_and_others_are_refused(tmp_path):
    first = build(TEXTS, tmp_path / "store")
    assert build(iter(TEXTS), tmp_path / "store").manifest == first.manifest
    tokenizer = first.tokenizer_path
    again = build(TEXTS, tmp_path / "store", tokenizer=str(tokenizer), vocab_size=1)
    assert again.manifest == first.manifest
    with pytest.raises(bert_jax.UserError, match="built from other text"):
        build(TEXTS[1:], tmp_path / "store")


def test_what_is_at_the_folder_is_noticed_before_the_documents_are_read(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "notes").write_text("mine")
    documents = iter(TEXTS)
    with pytest.raises(bert_jax.UserError, match="exists and is not a token store"):
        build(documents, tmp_path / "store")
    with pytest.raises(bert_jax.UserError, match="gs://bucket/store: write to a local path"):
        build(documents, "gs://bucket/store")
    assert next(documents) == TEXTS[0]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ("a text", "documents has type str"),
        ({"train": TEXTS}, "documents has type dict; give .*one of its values"),
        (3, "documents has type int"),
        ([*TEXTS, None], "document 30 has type NoneType"),
        ([{"txt": "a"}], r"document 0 has no key 'text'; give field=… \(it has 'txt'\)"),
        ([{"text": 3}], r"document 0\['text'\] has type int"),
        ([{"text": None}], "no text"),
        ([["a", 3]], "document 0 has type list"),
        ([], "no documents"),
        ([""], "no text"),
    ],
)
def test_what_is_no_document_is_refused_and_nothing_is_left(documents, message, tmp_path):
    with pytest.raises(bert_jax.UserError, match=message):
        build(documents, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    assert not list(tmp_path.glob(".*.documents.*"))


def test_an_error_of_the_iterator_says_where_and_leaves_nothing(tmp_path):
    def documents() -> Iterator[str]:
        yield from TEXTS
        raise ConnectionError("the hub is away")

    with pytest.raises(ConnectionError, match="the hub is away") as raised:
        build(documents(), tmp_path / "store")
    assert raised.value.__notes__ == ["raised by documents after 30 of them; no store is written"]
    assert not os.listdir(tmp_path)


def test_many_documents_are_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.data_pipeline.sources.documents._FILE_BYTES", 100)
    several = build(TEXTS, tmp_path / "several")
    monkeypatch.undo()
    one = build(TEXTS, tmp_path / "one")
    files = [read_manifest(s.path)["sources"][0]["files"] for s in (one, several)]
    assert files[0] == 1 < files[1]
    assert several.train.digest == one.train.digest


def test_batches_are_those_of_the_trainer(store):
    config = two_phases(store, steps=(3, 2))
    made = list(bert_jax.batches(config))
    assert len(made) == config.total_steps
    trained = [
        phase_batches(config, store, store.train, phase).batch(step)
        for phase in config.phases
        for step in range(phase.steps)
    ]
    later = bert_jax.batches(config.replace("data.store", "elsewhere"), store, start=2)
    for got, wanted in itertools.chain(
        zip(made, trained, strict=True), zip(later, trained[2:], strict=True)
    ):
        assert got.keys() == wanted.keys()
        assert all(np.array_equal(got[name], wanted[name]) for name in got)
    with pytest.raises(bert_jax.UserError, match="step 5 is not one of this run's 5 steps"):
        bert_jax.batches(config, store, start=5)
    with pytest.raises(bert_jax.UserError, match=r"config\.data\.store is empty"):
        bert_jax.batches(config.replace("data.store", ""))


def test_batches_have_the_documented_shapes(store):
    config = small_config(store).replace({"data.masking": "span", "data.span_boundary": True})
    (phase,) = config.phases
    batch = next(bert_jax.batches(config, store.path))
    letters = {"B": phase.batch_size, "S": phase.seq_length, "P": phase.max_predictions, "N": 1}
    text = " ".join((bert_jax.batches.__doc__ or "").partition("Yields:")[2].split())
    documented = {
        name: (kind, (letters["B"], letters[width]))
        for names, kind, width in re.findall(r"([^:;\[\]]+): (\w+32) \[B, (\w)\]", text)
        for name in re.findall(r"\w+", names)
        if name in batch
    }
    assert documented == {name: (str(v.dtype), v.shape) for name, v in batch.items()}
    assert len(documented) == 15  # all that exist


def test_objects_describe_themselves_in_one_line(store):
    shown = repr(store)
    assert "train: 40 documents" in shown
    assert "100 entries" in shown
    config = repr(two_phases(store))
    assert "1 layer of 32" in config
    assert "6 x 8 x 16 then 6 x 8 x 32" in config
    assert all(len(text) < 250 and "\n" not in text for text in (shown, config))


def test_a_name_is_not_a_configuration(tmp_path):
    with pytest.raises(bert_jax.UserError, match=r"has type str; give bert_jax\.config"):
        bert_jax.pretrain("tiny", tmp_path)  # type: ignore[arg-type]


def test_documents_are_no_source_of_the_command_line():
    with pytest.raises(bert_jax.UserError, match=r"only bert_jax\.build_store"):
        parse_source("documents:rows.jsonl")


@pytest.fixture
def signals_of_a_terminal() -> Iterator[None]:
    """However the tests were started: in the background of a script Ctrl-C is ignored."""
    handlers = {signal.SIGINT: signal.default_int_handler}
    with dispositions(lambda number: handlers.get(number, signal.SIG_DFL)):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("signals_of_a_terminal")
def test_ctrl_c_saves_and_the_program_has_its_signals_again(store, tmp_path):
    config = small_config(store).replace({"phases[0].steps": 100_000, "log_every_steps": 1})
    before = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)

    def interrupt() -> None:
        while not list(run_records.records(Workdir.open(tmp_path).metrics))[1:]:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(bert_jax.StoppedError, match=r"saved step \d+ "):
        bert_jax.pretrain(config, tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)) == before
    (saved,) = complete_steps(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    shorter = config.replace("phases[0].steps", saved + 2)
    bert_jax.pretrain(shorter, tmp_path)
    assert complete_steps(tmp_path)[-1] == saved + 2


@pytest.mark.parametrize("name", ["UserError", "StoppedError", "NumbersError", "StorageError"])
def test_a_notebook_shows_an_error_as_one_line(name):
    """`_render_traceback_` is IPython's hook for exceptions that have their own text."""
    assert getattr(bert_jax, name)("why")._render_traceback_() == [f"{name}: why"]


def test_a_notebook_gets_plain_text(monkeypatch):
    """Not a block of HTML for each line, nor a warning that bars need ipywidgets."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert not console.Console().is_jupyter
    assert not runpy.run_path(progress.__file__)["terminal"].is_jupyter


@pytest.mark.slow
def test_from_texts_to_a_model(tmp_path):
    store = build(TEXTS * 3, tmp_path / "store")
    config = small_config(store)
    bert_jax.pretrain(config, tmp_path / "run")
    bert_jax.export(tmp_path / "run", tmp_path / "exported")
    model = bert_jax.load(tmp_path / "exported")
    assert f"2 layers of 32, {store.vocab_size:,} entries, 32 positions" in repr(model)
    assert len(model.fill_mask("the [MASK] sat down", top_k=3)[0]) == 3


def test_nothing_is_written_into_an_input(tmp_path, store):
    """As on the command line, see tests/commands/test_outputs.py."""
    path, run = store.path, tmp_path / "run"
    config = bert_jax.config("tiny", {"data.store": os.fspath(path)})
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"config": {"data": {"store": os.fspath(path)}}}))
    before = sorted(path.rglob("*"))
    for call in (
        lambda out: bert_jax.inspect(path, config, html=out),
        lambda out: bert_jax.pretrain(config, out),
        lambda out: bert_jax.export(run, out),
        lambda out: html.Page("a").save(out, inputs=[path]),
    ):
        for out in (path / "new", path / "held_out/new"):
            with pytest.raises(UserError, match="is in the input"):
                call(out)
    assert sorted(path.rglob("*")) == before
