"""Every page and table is fed names that are markup, formulas and terminal commands."""

import collections
import contextlib
import dataclasses
import io
import json
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from corpus import SPECIAL, small_config, small_store
from stores import StoredDocument, write_store

from bert_jax import cli
from bert_jax.aot import report_html as aot_page
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.collectives import Traffic
from bert_jax.aot.cost.cycles import Line, Operation, Share
from bert_jax.aot.cost.memory import Memory
from bert_jax.aot.cost.roofline import Copies, Unestimated
from bert_jax.aot.hlo.sources import Source
from bert_jax.aot.report_data import PhaseReport, Report
from bert_jax.api.model import Fill
from bert_jax.commands import fill
from bert_jax.data_pipeline.analysis.inspect import Lengths, ShownExample, ShownToken
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.hardware import slices
from bert_jax.parallel.mesh import MESH_AXES
from bert_jax.reporting import html, plots
from bert_jax.reporting.dataset import _print_table
from bert_jax.runtime.console import console, plain, working
from bert_jax.runtime.streams import TolerantStream
from bert_jax.training import evaluate
from bert_jax.training.progress import RunDisplay
from bert_jax.workdir import description as workdir

HOSTILE = (
    "<script>alert(1)</script>%",
    "<img src=x onerror=alert(2)>%",
    '" onmouseover="alert(3)',
    "' style='color:red",
    "</style><style>*{}</style>",
    "--><b>",
    "]]><b>",
    "&lt;b&gt;",
    "{title}",
    "%s%",
    "[bold]",
    "[/]",
    "[/bold]x",
    "[link=https://example.org]y[/link]",
    "[red",
    "\\[x]",
    ":cat:",
    "$x^$",
    "$\\frac",
    "_hidden",
    "猫🐈",
    "\x1b[31m\x1b]8;;https://example.org\x07",
    "\u202etxt.exe",
    "\x00\x07\x9b",
)
# The same but for what is in them; those that end in % stand in columns of numbers.
TAME = tuple(f"name{i}{'%' if name.endswith('%') else ''}" for i, name in enumerate(HOSTILE))


class Structure(HTMLParser):
    """Elements with the names of their attributes, and text; pictures apart, whose letters are
    elements."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.page: collections.Counter = collections.Counter()
        self.pictures: set = set()
        self.words, self._depth = "", 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        kind = tag, tuple(sorted(name for name, _ in attributes))
        if tag == "svg" or self._depth:
            self.pictures.add(kind)
            self._depth += tag == "svg"
        else:
            self.page[kind] += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "svg"

    def handle_data(self, data: str) -> None:
        self.words += data


def every_method(names: tuple[str, ...], folder: Path) -> Path:
    """A page with names wherever a page takes text."""
    page = html.Page(" ".join(names))
    for name in names:
        page.heading(name)
        page.text(name)
        page.table((name, "x"), [(name, 1), (0.5, f"{name}%"), (f"{name}\ud800", "1%")])
        tokens = [ShownToken(name, True, kind, name) for kind in ("plain", "masked", "random")]
        page.examples([ShownExample(0, 1, None, None, tuple(tokens))], [name])
    lines = {name: ([1, 2], [1.0, 2.0]) for name in names}
    baselines = dict.fromkeys(names, 1.0)
    page.figure(plots.curves(lines, ylabel="y", baselines=baselines), names[0])
    page.figure(plots.stacked_bar(dict.fromkeys(names, 1.0)), names[1])
    bars = {name: dict.fromkeys(names[:2], 1.0) for name in names}
    page.figure(plots.stacked_bars(bars, xlabel="x"), names[2])
    page.figure(plots.stacked_bars({"x": dict.fromkeys(names, 1.0)}, xlabel="x"), names[2])
    page.figure(plots.histogram(Lengths(np.array([0, 1, 2])), xlabel="x"), names[3])
    page.save(folder / "methods.html")
    return folder / "methods.html"


def compiled(names: tuple[str, ...], folder: Path) -> Path:
    """`compile --html` of a program whose parts, lines and operations have these names."""
    config = small_config(SimpleNamespace(vocab_size=100, path="store"))
    analysis = Analysis(
        cycles=100, compute_seconds=1.0, unestimated_seconds=1.0, collective_seconds=1.0,
        exposed_seconds=1.0,
        shares=tuple(Share(name, name, 5) for name in names),
        lines=tuple(Line(Source(name, name, name), 5, 1) for name in names),
        operations=tuple(
            Operation(name, name, name, name, name, Source(name, name, name), 1, 1)
            for name in names
        ),
        unestimated=tuple(Unestimated(name, 1, 1, 1, 1.0) for name in names),
        copies=Copies(1, 1, 1.0),
        collectives=tuple(
            Traffic(name, (name,), 2, False, name, True, 1, 1, 1.0, 1.0) for name in names
        ),
        trips={},
    )  # fmt: skip
    memory = Memory(1, 1, 1, 1, 1, limit=100, fits=True)
    phase = PhaseReport(0, config.phases[0], memory, (), analysis, 1.0, 1.0, 1.0)
    target = dataclasses.replace(slices.find("v5e-16"))
    mesh = dict.fromkeys(MESH_AXES, 1) | dict.fromkeys(names, 2)
    made = Report(
        name=names[0], config=config, target=target, mesh=mesh, compiler=names[1], phases=(phase,),
    )  # fmt: skip
    aot_page.save(made, str(folder / "compiled.html"), " ".join(names))
    return folder / "compiled.html"


def store_of(names: tuple[str, ...], folder: Path) -> TokenStore:
    entries = [*SPECIAL, *(name.replace("\x00", "") or "x" for name in names)]
    documents = [
        StoredDocument(
            [[5 + (i + j + k) % len(names) for k in range(6)] for j in range(4)],
            source=i % len(names),
            language=i % len(names),
        )
        for i in range(3 * len(names))
    ]
    return write_store(
        folder / "store",
        tokenizer=Tokenizer.from_vocab(entries),
        train=documents,
        held_out=documents[: len(names)],
        sources=names,
        languages=names,
    )


def inspected(names: tuple[str, ...], folder: Path) -> Path:
    store, page = store_of(names, folder), folder / "inspected.html"
    sizes = ("steps=2", "batch_size=8", "seq_length=32", "max_predictions=5")
    words = [f"--config.phases[0].{size}" for size in sizes]
    assert cli.main(["data", "inspect", f"--store={store.path}", *words, f"--html={page}"]) == 0
    return page


def run_of(names: tuple[str, ...], folder: Path) -> Path:
    """A run's folder, its name and its records full of these names."""
    run = folder / " ".join(names[:3]).replace("/", "∕")
    run.mkdir()
    store = small_store(folder / "of the run")
    config = small_config(store)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, store=names[0]))
    rows = [8] * len(config.phases)
    description = workdir.describe(config, store, rows, mesh={"data": 1}, device_kind=names[1])
    (run / "config.json").write_text(json.dumps(description))
    scalars = {
        "loss": 1.0, "step_seconds": 1.0, "tokens_per_second": 1.0, "hosts/stragglers": names,
        "hosts/own": [1.0] * len(names), "hosts/data_wait": [1.0] * len(names),
        **{f"nsp/{name}/{key}": 0.5 for name in names for key in ("accuracy",
                                                                  "baseline_accuracy")},
        **{f"{task}/{key}": 0.5 for task in ("mlm", "nsp") for key in (
            "loss", "accuracy", "baseline_loss", "baseline_accuracy", "source_accuracy")},
    }  # fmt: skip
    records = [
        {"kind": "start", "step": 0, "hosts": names, "processes": 2, "versions": {names[0]: "1"}},
        {"kind": "train", "step": 4, **scalars, "seconds": {"step": 1.0}},
        {"kind": "eval", "step": 4, **scalars},
        {"kind": "save_failed", "step": 4, "reason": " ".join(names)},
        {"kind": "quarantined", "step": 2, "reason": " ".join(names)},
        {"kind": "stopped", "step": 4, "reason": " ".join(names), "seconds": {"step": 1.0}},
    ]
    lines = [json.dumps({"phase": 0, "time": time.time(), **record}) for record in records]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run


def stated(names: tuple[str, ...], folder: Path) -> Path:
    page = folder / "stated.html"
    assert cli.main(["status", f"--workdir={run_of(names, folder)}", f"--html={page}"]) == 0
    return page


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict:
    """Name of a maker -> of hostile and of tame names, the page and what was printed."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "2000")
        for make in (every_method, compiled, inspected, stated):
            found[make.__name__] = []
            for names in (HOSTILE, TAME):
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    page = make(names, tmp_path_factory.mktemp("names"))
                text = page.read_text(encoding="utf-8")
                found[make.__name__].append((Structure(text), out.getvalue()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["every_method", "compiled", "inspected", "stated"])
def test_no_name_adds_an_element_or_an_attribute_to_a_page(name, made):
    (hostile, _), (tame, _) = made[name]
    assert hostile.page == tame.page
    assert hostile.pictures <= tame.pictures | {("use", ("transform", "xlink:href"))}
    assert not {tag for tag, _ in hostile.pictures} & {"script", "b", "img", "a", "style"} - {
        tag for tag, _ in tame.pictures
    }
    if name == "every_method":
        for text in HOSTILE:
            assert text.replace("\x00", "") in hostile.words.replace("\ufffd", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inspected", "stated"])
def test_no_name_is_obeyed_or_hidden_by_a_verb(name, made):
    (_, out), _ = made[name]
    for text in HOSTILE:
        assert plain(text) in out, text
    for dangerous in "\x1b\x00\x07\x9b\u202e":
        assert dangerous not in out


def tables(names: tuple[str, ...]) -> None:
    """Everything that is printed with names in it, verbs apart."""
    for name in names:
        console.print(name, soft_wrap=True)
        display = RunDisplay(10, 0, phases=2)
        display.phase(0, name)
        with working(name):
            pass
        console.print(fill.table([[Fill(name, 0.5)]]))
        console.print(fill.table([[Fill(name, 0.5)], [Fill(name, 0.5)]]))
        _print_table(name, (name, name), [(name, 1), (name, name)])
    sizes = {"seq_length": 8, "rows": 8, "documents": 8}
    records = [{"form": "own", "step": 1, "phase": 0, **sizes, "nsp/loss": 1.0}]
    console.print(evaluate._table(records, names))


def test_no_name_is_obeyed_or_hidden_by_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    tables(HOSTILE)
    out, err = capsys.readouterr()
    for name in HOSTILE:
        assert out.count(plain(name)) >= 9, name
        assert plain(name) in err
    for dangerous in "\x1b\x00\x07\x9b\u202e":
        assert dangerous not in out + err


def test_a_terminal_of_ascii_shows_all_of_it(tmp_path, monkeypatch):
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with (tmp_path / "out").open("wb") as file:
        out = TolerantStream(file.fileno(), ascii_stream, line_buffering=False)
        monkeypatch.setattr(sys, "stdout", out)
        inspected(HOSTILE, tmp_path)
        out.flush()
    said = (tmp_path / "out").read_bytes()
    assert b"####" in said
    assert b"\\u732b" in said
