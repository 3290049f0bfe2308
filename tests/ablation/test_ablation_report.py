"""The report of an ablation: its sentences, its files, and runs that are in no mean."""

import csv
import dataclasses
import html
import json
import re

import ablated
import numpy as np
import pytest
from ablated import made_results
from corpus import small_store

from bert_jax.ablation import plan, record, report_files, results, sentences, spec, statistics
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.state import RunState
from bert_jax.config.config_files import execute
from bert_jax.config.serialization import plain
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.metrics import run_records


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def test_verdicts_are_sentences(tmp_path, store):
    found = made_results(tmp_path, store, {"better": -0.1, "worse": 0.1, "same": 0.0})
    better, worse, same = sentences.verdicts(found)
    number = r"[−+]0\.\d{4}"
    assert re.fullmatch(
        rf"better: better than the reference: {number} nat, between {number} and {number} "
        r"\(p = [\de.-]+ after Holm's correction, 5 seeds\)\.",
        better,
    )
    assert worse.startswith("worse: worse than the reference: +0.")
    assert re.fullmatch(
        rf"same: not distinguishable at this budget: between {number} and {number} nat; a power of "
        r"80 % would need a difference of: 5 seeds 0\.\d{4}, 10 seeds 0\.\d{4}, 20 seeds 0\.\d{4} "
        r"nat\.",
        same,
    )
    assert found.verdicts["same"].shown is False


def test_two_seeds_have_no_verdict(tmp_path, store):
    found = made_results(tmp_path, store, {"better": -0.5}, seeds=2)
    assert sentences.verdicts(found) == ["better: no verdict with 2 seeds; at least 3 are needed."]


def test_few_documents_have_no_verdict_or_one_with_a_warning(tmp_path, store):
    """Those that count, which are fewer than there are where one is longer."""
    few = made_results(tmp_path, store, {"better": -0.5}, documents=8)
    said = "8 effective documents; at least 10 are needed, which more held-out text gives"
    assert sentences.verdicts(few) == [f"better: no verdict with {said}."]
    assert f"better: no verdict with {said}" in plan.text(few.runs, few)
    some = made_results(tmp_path, store, {"better": -0.5, "same": 0.0}, documents=28)
    warning = "; measured on only 27.9 effective documents (28 of unequal length): below 30 a few "
    better, same = sentences.verdicts(some)
    assert warning in better
    assert warning in same
    assert better.startswith("better: better than the reference: −0.50")
    enough = made_results(tmp_path, store, {"better": -0.5})
    assert "effective" not in sentences.verdicts(enough)[0]


def test_a_run_that_failed_is_named_and_in_no_mean(tmp_path, store):
    """And there is no verdict in favour of the one with more of them, variant or reference."""
    whole = made_results(tmp_path, store, {"a": -0.1, "b": 0.1})
    found = made_results(tmp_path, store, {"a": -0.1, "b": 0.1}, failed={"a/1": 9.0, "b/2": 9.0})
    assert list(found.excluded) == ["a/1", "b/2"]
    assert sentences.excluded(found)[0].startswith("a/1 is left out of all means: loss ")
    assert sentences.excluded(found)[0].endswith(" is not below the unigram's 7.000.")
    assert "4 of 5 planned seeds" in sentences.verdicts(found)[1]
    assert found.primary["a"].seeds == 4
    assert found.primary["a"].mean == pytest.approx(whole.primary["a"].mean, abs=0.005)
    no, worse = sentences.verdicts(found)
    assert no == "a: no verdict in its favour: 1 run of it failed, 0 of the reference."
    assert worse.startswith("b: worse than the reference")
    worse = made_results(tmp_path, store, {"a": 0.1, "b": -0.1}, failed={"reference/1": 9.0})
    no, better = sentences.verdicts(worse)
    assert no == "a: no verdict against it: 0 runs of it failed, 1 of the reference."
    assert worse.verdicts["a"].shown is None
    assert better.startswith("b: better than the reference")
    both = made_results(tmp_path, store, {"a": -0.1}, failed={"a/1": 9.0, "reference/1": 9.0})
    assert sentences.verdicts(both)[0].startswith("a: better than the reference")
    diverged = dataclasses.replace(
        whole,
        states=whole.states | {"a/0": RunState("diverged", 3, "steps 3 to 12")},
        measured={name: each for name, each in whole.measured.items() if name != "a/0"},
    )
    assert sentences.excluded(diverged) == [
        "a/0 is left out of all means: ended with 44: steps 3 to 12."
    ]
    assert "no verdict in its favour" in sentences.verdicts(diverged)[0]


def test_a_difference_is_of_sums_over_whole_documents(tmp_path, store):
    found = made_results(tmp_path, store, {"a": -0.1})
    form, seeds = found.ablation.form("single/token"), range(5)
    own, theirs = (
        np.stack([found.of(name)[s].forms[form].sums["mlm"]["loss"] for s in seeds])
        for name in ("a", "reference")
    )
    document = found.of("a")[0].forms[form].document
    sums = statistics.by_document(own.astype(float) - theirs, document, 40)
    expected = statistics.compare(sums, np.full(40, 20.0))
    assert found.primary["a"].mean == pytest.approx(expected.mean, rel=1e-12)
    assert found.primary["a"].interval == pytest.approx(expected.interval, rel=1e-9)


def test_all_files_say_the_same(tmp_path, store, capsys):
    found = made_results(tmp_path, store, {"a": -0.1, "b": 0.0})
    report_files.write(found, {str(store.path): store})
    out = capsys.readouterr().out
    root = tmp_path / "A"
    before = (root / "differences.csv").read_bytes()
    with (root / "differences.csv").open() as file:
        rows = list(csv.DictReader(file))
    # Two measures, loss and accuracy, in all text and in two sources, of two variants.
    assert len(rows) == 2 * 2 * 3 * 2
    judged = [row for row in rows if row["verdict"] != "exploratory"]
    assert [(row["variant"], row["verdict"]) for row in judged] == [
        ("a", "shown"), ("b", "not distinguishable")
    ]  # fmt: skip
    assert {row["measure"] for row in judged} == {"single/token"}
    page, text = (root / "report.html").read_text(), (root / "report.md").read_text()
    data = json.loads((root / "report.json").read_text())
    for line in sentences.verdicts(found):
        assert line in out
        assert line in text
        assert line in data["verdicts"]
    assert "not distinguishable at this budget" in page
    assert page.count("<svg") == 2
    for words in ("A paper, table 1", "90.1", "optimizer.eps", "exploratory", "by source".title()):
        assert words.lower() in page.lower()
    assert not re.findall(r'(?:src|href)="(?!#)', page), "the page is self-contained"
    assert data["differences"][0]["difference"] == pytest.approx(float(rows[0]["difference"]))
    report_files.write(found, {str(store.path): store})
    assert (root / "differences.csv").read_bytes() == before


def test_the_page_says_what_the_runs_spent_and_what_made_them(tmp_path, store, capsys):
    """Commit, versions, digests of the store and the plans, commands, memory, tokens/s, time."""
    found = made_results(tmp_path, store, {"a": -0.1}, seeds=3)
    for number, run in enumerate(found.runs):
        folder = tmp_path / "A/runs" / run.name
        folder.mkdir(parents=True)
        seconds, peak = {"step": 20.0, "evaluate": 1.0}, {"process": 3 << 20}
        written = [
            ("start", 0, {"time": 100.0, "versions": {"jax": "0.9", "commit": "0123abc"}}),
            ("train", 30, {"time": 120.0, "tokens_per_second": 2000.0 + number}),
            ("eval", 30, {"time": 121.0, "mlm/loss": 6.0 + number}),
            ("eval", 60, {"time": 140.0, "mlm/loss": 5.0 + number}),
            ("finished", 60, {"time": 149.0, "seconds": seconds, "peak_bytes": peak}),
        ]
        lines = (run_records.line(kind, step, 0, values) for kind, step, values in written)
        (folder / "metrics.jsonl").write_text("".join(lines))
    for _ in range(2):
        record.note_command(found.workdir, "bert-jax ablate run --config=mine.py --at_once=2")
    report_files.write(found, {str(store.path): store})
    page = (tmp_path / "A/report.html").read_text()
    said = re.sub(r"<[^>]+>", " ", page)
    digests = {store.train.digest, store.held_out.digest, store.tokenizer_digest}
    plans = spec.plan_digests(found.runs, {str(store.path): store})
    for words in ("jax 0.9, commit 0123abc", *digests, *plans.values(), "While training"):
        assert words in said
    assert page.count("<svg") == 3, "the curves with the band of the seeds"
    assert said.count("bert-jax ablate run --config=mine.py --at_once=2") == 1
    for run in found.runs:
        assert f"--workdir={tmp_path}/A/runs/{run.name}" in said
    # 49 seconds of training and one of evaluation in each run.
    spent = r"reference +60 +[\d,]+ +15,360 +[\d.e+]+ +[\d,]+ +0\.8 +2,002 +3 +2\.0%"
    assert re.search(spent, said), said
    line = r"evaluation: 2\.0% of the 0:05:00 of the runs; statistics and page: [\d.]+ s, [\d.]+%"
    assert re.search(line, capsys.readouterr().out)
    data = json.loads((tmp_path / "A/report.json").read_text())
    assert data["runs"]["a/1"]["measured"]["peak_bytes"] == {"process": 3 << 20}
    assert data["runs"]["a/1"]["plan"] == plans["a/1"]
    assert data["software"]["commit"] == "0123abc"


def test_runs_on_the_same_examples_have_the_same_plan_digest(tmp_path, store):
    variants = {"token": {}, "span": {"data.masking": "span"}, "pairs": {"data.pairing": "nsp"}}
    file = ablated.write(tmp_path, variants=variants, seeds=(0, 1))
    values = plain(execute(file)) | {"store": str(store.path)}
    plans = spec.plan_digests(spec.runs(spec.parse_ablation(values)), {str(store.path): store})
    assert plans["token/0"] == plans["span/0"]
    assert len({plans[name] for name in ("token/0", "token/1", "pairs/0", "pairs/1")}) == 4


def test_results_are_read_from_the_workdirs(tmp_path, store):
    """Before the first run: all are waiting, and nothing is compared."""
    made = made_results(tmp_path, store, {"a": 0.0})
    ablation, root = made.ablation, AblationDir.open(tmp_path / "A")
    found = results.read_results(ablation, root, made.runs, made.planned, made.record)
    assert {each.state for each in found.states.values()} == {"waiting"}
    assert found.primary == {}
    assert (
        sentences.progress(found)
        == "0 of 10 runs trained and measured; the others are missing here"
    )


def test_the_page_begins_with_what_was_shown_and_ends_with_digests(tmp_path, store):
    """On a telephone too: the verdict is next to the variant. Every difference has its sign."""
    found = made_results(tmp_path, store, {"a": -0.1, "b": 0.1})
    report_files.write(found, {str(store.path): store})
    page = html.unescape((tmp_path / "A/report.html").read_text())
    tables = re.findall(r"<table>.*?</table>", page)
    order = [
        page.index("a: better than the reference: −0."),
        page.index("single/token: loss minus that of the reference; below zero is better"),
        page.index(tables[0]),
        page.index(store.train.digest),
    ]
    assert order == sorted(order)
    header = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", tables[0])
    assert header == ["variant", "verdict", "difference", "95 % interval"]
    said = re.sub(r"<[^>]+>", " ", page[: order[-1]])
    assert not re.search(r"by 0\.\d{4}|between 0\.\d|to 0\.\d{4}", said), "a number without a sign"
    text = (tmp_path / "A/report.md").read_text()
    assert "| variant | verdict | difference | 95 % interval |" in text


def test_a_single_evaluation_of_each_run_is_drawn(tmp_path, store):
    """A line of one point would be invisible."""
    found = made_results(tmp_path, store, {"a": -0.1}, seeds=3)
    for number, run in enumerate(found.runs):
        folder = tmp_path / "A/runs" / run.name
        folder.mkdir(parents=True)
        line = run_records.line("eval", 60, 0, {"mlm/loss": 5.0 + number})
        (folder / "metrics.jsonl").write_text(line)
    report_files.write(found, {str(store.path): store})
    page = (tmp_path / "A/report.html").read_text()
    (curves,) = re.findall(r"While training</h2>.*?(<svg.*?</svg>)", page, re.DOTALL)
    points = re.findall(r'<g id="line2d_\d+">\s*<defs>.*?</g>', curves, re.DOTALL)
    colours = [each for each in ("#1f77b4", "#ff7f0e") if any(each in part for part in points)]
    assert colours == ["#1f77b4", "#ff7f0e"], "a marker for each variant"
