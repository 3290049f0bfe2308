"""The HTML page: self-contained, escaped, and every figure from the metrics."""

import json
import math
import warnings

import numpy as np
import pytest
from etils import epath

from bert_jax.data_pipeline.analysis.inspect import Lengths, ShownExample, ShownToken
from bert_jax.reporting import html, plots, run_page
from bert_jax.workdir.layout import Workdir


def test_a_page_escapes_text_and_loads_nothing(tmp_path):
    page = html.Page("a < b")
    page.table(("name", "value"), [("<b>", 1234567), ("half", 0.123456), ("share", "12.5%")])
    page.figure(plots.curves({"x": ([1, 2], [3.0, 4.0])}, ylabel="y"), "line")
    page.save(epath.Path(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert "a &lt; b" in text
    assert "&lt;b&gt;" in text
    assert '<td class="number">1,234,567</td>' in text
    assert '<td class="number">0.1235</td>' in text
    assert '<td class="number">12.5%</td>' in text
    assert "<svg" in text
    for loading in ("<script", "<link", "<img", "src=", "@import"):
        assert loading not in text


def test_a_run_shows_objectives_beside_baselines(tmp_path):
    shared = {
        **{f"{n}/{w}": 0.25 for n in ("mlm", "nsp") for w in ("loss", "accuracy")},
        **{f"{n}/baseline_{w}": 0.5 for n in ("mlm", "nsp") for w in ("loss", "accuracy")},
        "nsp/source_accuracy": 0.625,
        "nsp/books/accuracy": 0.75,
        "nsp/books/baseline_accuracy": 0.875,
        "nsp/wiki/accuracy": 0.5,
        "nsp/wiki/baseline_accuracy": 0.5,
        "mlm/books/loss": 0.2,
        "mlm/wiki/loss": 0.3,
        "tokens_per_second": 1000.0,
    }
    records = [{"kind": kind, "step": 7, "time": 0, **shared} for kind in ("train", "eval")]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    page = html.Page("run")
    run_page.add_training(page, run_page.Logged.read(Workdir.open(tmp_path).metrics))
    page.save(epath.Path(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    for value in ("25.0%", "50.0%", "62.5%", "75.0%", "87.5%", "0.25", "0.5", "After 7 steps"):
        assert value in text
    assert "NSP predicts whether the second segment follows the first" in text
    assert "MLM loss by source" in text
    assert text.count("<svg") == 7  # losses, accuracies, sources, speed


def test_a_number_that_is_not_finite_leaves_its_neighbours_in_the_curve():
    records = [{"step": step, "loss": math.nan if step == 500 else 1.0} for step in range(1, 1001)]
    steps, values = run_page._line(records, "loss")
    assert len(steps) < 500
    assert values == [1.0] * len(steps)
    assert math.isnan(run_page._line(records[499:500], "loss")[1][0])


def test_norms_that_are_all_zero_are_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = plots.curves({"norm": ([1, 2], [0.0, 0.0])}, ylabel="norm", log=True)
    assert svg.startswith("<svg")


def test_a_loss_has_one_unit_also_by_source():
    record = {"kind": "eval", "step": 7, "time": 0}
    record |= {f"mlm/{key}": 1.0 for key in ("loss", "books/loss", "wiki/loss")}
    logged = run_page.Logged.of([record])
    for runs in ({"": logged}, {"a": logged, "b": logged}):
        plots = [*run_page._objectives(runs, {}), *run_page._sources(runs)]
        assert [plot["ylabel"] for plot, _ in plots] == ["loss (nats)"] * (1 + len(runs))


def test_a_student_shows_how_near_it_is_to_its_teacher_beside_the_unigram(tmp_path):
    shared = {
        "loss": 3.0,
        **{f"mlm/{w}": 0.25 for w in ("loss", "accuracy", "baseline_loss", "baseline_accuracy")},
        **{f"distillation/{w}": 1.5 for w in ("kl", "agreement", "cosine")},
        **{f"distillation/baseline_{w}": 4.75 for w in ("kl", "agreement")},
    }
    records = [{"kind": "train", "step": step, "time": 0, **shared} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    page = html.Page("run")
    run_page.add_training(page, run_page.Logged.read(Workdir.open(tmp_path).metrics))
    page.save(epath.Path(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    for caption in ("Divergence from the teacher", "First guesses that are", "Last states and the"):
        assert caption in text
    drawn = run_page._others({"": run_page.Logged.read(Workdir.open(tmp_path).metrics)})
    baselines = [plot["baselines"] for plot, _ in drawn]
    assert baselines == [{"baseline": 4.75}, {"baseline": 4.75}, {}]


def test_a_run_shows_the_objectives_it_has_and_the_baselines_given(tmp_path):
    """Sentence order with span boundaries: no next sentence anywhere."""
    names = ("mlm", "sop", "sbo")
    shared = {
        **{f"{n}/{w}": 0.25 for n in names for w in ("loss", "accuracy")},
        **{f"{n}/baseline_{w}": 0.5 for n in names for w in ("loss", "accuracy")},
        "sop/my/books/accuracy": 0.75,
        "sop/my/books/baseline_accuracy": 0.875,
        "sop/wiki/accuracy": 0.5,
        "sop/wiki/baseline_accuracy": 0.5,
        "tokens_per_second": 1000.0,
    }
    records = [{"kind": kind, "step": 7, "time": 0, **shared} for kind in ("train", "eval")]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    page = html.Page("run")
    run_page.add_training(
        page, run_page.Logged.read(Workdir.open(tmp_path).metrics), token_baselines={"bigram": 0.4}
    )
    page.save(epath.Path(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    for value in ("Sentence order (SOP)", "Span boundary (SBO)", "my/books", "75.0%", "87.5%"):
        assert value in text
    assert "bigram" in text
    assert "NSP" not in text
    assert text.count("<svg") == 8


def test_before_the_first_evaluation_a_run_shows_its_training(tmp_path):
    values = {f"mlm/{w}": 0.25 for w in ("loss", "accuracy", "baseline_loss", "baseline_accuracy")}
    record = {"kind": "train", "step": 7, "time": 0, "tokens_per_second": 1000.0, **values}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    page = html.Page("run")
    run_page.add_training(page, run_page.Logged.read(Workdir.open(tmp_path).metrics))
    page.save(epath.Path(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert "After 7 steps, not evaluated on held-out text yet." in text
    assert "Results on the text trained on" in text
    assert text.count("<svg") == 3
    assert "held-out</" not in text


def test_examples_are_escaped_and_coloured(tmp_path):
    tokens = (
        ShownToken("[CLS]", True, "special"),
        ShownToken("a<b", True, "plain"),
        ShownToken("s", False, "plain", edge=True),
        ShownToken("[MASK]", True, "masked", "</span>"),
    )
    page = html.Page("x")
    page.examples([ShownExample(0, 1, None, None, tokens)], ["<row>"])
    page.save(epath.Path(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert '<span class="special">[CLS]</span> a&lt;b<span class="plain edge">s</span>' in text
    assert '<span class="masked">[MASK]→&lt;/span&gt;</span>' in text
    assert "&lt;row&gt;" in text


@pytest.mark.parametrize("counts", [[0, 1], [0, 5, 0, 2], [0] * 100_000 + [1]])
def test_a_histogram_is_drawn_whatever_the_lengths(counts):
    assert "<svg" in plots.histogram(Lengths(np.array([0, 1, *counts])), xlabel="tokens")


def test_a_run_without_metrics_says_so(tmp_path):
    page = html.Page("run")
    run_page.add_training(page, run_page.Logged.read(Workdir.open(tmp_path).metrics))
    page.save(epath.Path(tmp_path / "page.html"))
    assert "No metrics yet." in (tmp_path / "page.html").read_text()
