"""What a verdict says of updates, tokens, positions and FLOPs, of objectives that were not learned,
and of seeds that were added."""

import csv
import dataclasses
import html
import json
import re
from collections.abc import Callable
from typing import Any

import ablated
import numpy as np
import pytest
from ablated import made_results
from corpus import small_store
from made_runs import MadeRuns

from bert_jax import cli
from bert_jax.ablation import budget, record, report_files, sentences, spec
from bert_jax.ablation.budget import Budget
from bert_jax.ablation.results import Results
from bert_jax.config.config_files import execute
from bert_jax.config.serialization import plain
from bert_jax.config.shipped import shipped_ablations
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.metrics import run_records
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import parameter_count
from bert_jax.training.eval_setting import OWN


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


NOT_ALONE = "; not attributable to the setting alone: "


@pytest.mark.parametrize(
    ("own", "consequences", "said"),
    [
        ((100, 100, 100, 100), (), ""),
        ((102, 98.1, 102, 102), (), ""),
        ((103, 100, 100, 100), (), ", with 3.0 % more updates"),
        ((100, 97, 100, 100), (), ", with 3.0 % fewer real tokens"),
        ((100, 100, 97, 103), (), ", with 3.0 % fewer positions and 3.0 % more FLOPs"),
        ((100, 100, 100, 133), (), "; costs 33 % more FLOPs"),
        ((100, 100, 100, 80), (), ", with 20 % fewer FLOPs"),
        ((106, 100, 100, 100), (), f", with 6.0 % more updates{NOT_ALONE}updates"),
        ((95, 100, 100, 100), (), f", with 5.0 % fewer updates{NOT_ALONE}updates"),
        (
            (133, 133, 100, 133),
            (),
            ", with 33 % more updates and 33 % more real tokens; costs 33 % more FLOPs"
            f"{NOT_ALONE}updates and real tokens",
        ),
        (
            (60, 100, 60, 59),
            ("steps",),
            ", with 40 % fewer updates (a consequence of the setting), 40 % fewer positions and "
            "41 % fewer FLOPs",
        ),
        (
            (60, 90, 100, 100),
            ("steps",),
            ", with 40 % fewer updates (a consequence of the setting) and 10 % fewer real tokens"
            f"{NOT_ALONE}real tokens",
        ),
    ],
)
def test_a_verdict_names_what_else_differs(own, consequences, said):
    found = budget.contrast(Budget(*own), Budget(100, 100, 100, 100), consequences)
    assert found.text == said


def with_steps(found: Results, variant: str, ratio: float) -> Results:
    """Results in which the runs of a variant had more steps, of as many tokens in all."""
    measured = {
        name: dataclasses.replace(
            each, spent=dataclasses.replace(each.spent, steps=each.spent.steps * ratio)
        )
        if each.run.variant == variant
        else each
        for name, each in found.measured.items()
    }
    return dataclasses.replace(found, measured=measured)


@pytest.mark.parametrize("effect", [-0.1, 0.0])
def test_no_verdict_on_a_confounded_difference_is_attributed_to_the_setting(
    effect, tmp_path, store, capsys
):
    """On the terminal, in the table, in the Markdown and on the page, in its own sentence."""
    found = with_steps(made_results(tmp_path, store, {"a": effect}), "a", 1.33)
    (line,) = sentences.verdicts(found)
    assert line.endswith(f", with 33 % more updates{NOT_ALONE}updates.")
    report_files.write(found, {str(store.path): store})
    root = tmp_path / "A"
    with (root / "differences.csv").open() as file:
        (judged,) = [row for row in csv.DictReader(file) if row["verdict"] != "exploratory"]
    shown = "shown" if effect else "not distinguishable"
    assert judged["verdict"] == f"{shown}, not attributable"
    page = html.unescape((root / "report.html").read_text())
    for text in (capsys.readouterr().out, page, (root / "report.md").read_text()):
        assert line in text
    assert judged["verdict"] in page


def test_consequences_are_those_of_the_file(tmp_path, store):
    found = with_steps(made_results(tmp_path, store, {"a": -0.1}), "a", 0.6)
    values = dataclasses.replace(found.ablation.values, consequences=("steps",))
    found = dataclasses.replace(found, ablation=dataclasses.replace(found.ablation, values=values))
    (line,) = sentences.verdicts(found)
    assert "with 40 % fewer updates (a consequence of the setting)" in line
    assert "not attributable" not in line
    path = shipped_ablations()["ablations/packing"]
    assert plain(execute(path))["consequences"] == ["steps"]
    with pytest.raises(UserError, match="consequences"):
        spec.parse_ablation(
            plain(execute(path)) | {"consequences": ["flops"], "store": str(store.path)}
        )


def test_updates_and_tokens_are_those_that_a_run_recorded(tmp_path, store, monkeypatch):
    """Skipped updates are none, and what was trained again after a restart counts once."""
    made = MadeRuns(tmp_path, store, monkeypatch)
    lines = [
        run_records.line("start", 0, 0, {}),
        run_records.line("train", 30, 0, {"padding": 0.5}),
        run_records.line("train", 40, 0, {"padding": 0.9}),
        run_records.line("skipped", 35, 0, {}),
        run_records.line("start", 30, 0, {}),
        run_records.line("skipped", 41, 0, {}),
        run_records.line("skipped", 42, 0, {}),
        run_records.line("skipped", 43, 0, {}),
        run_records.line("train", 60, 0, {"padding": 0.25}),
    ]
    (made.path("span/1") / "metrics.jsonl").write_text("".join(lines))
    found = made.results()
    own, planned = found.measured["span/1"].spent, made.planned["span"]
    assert own.steps == 57
    assert own.real_tokens == 60 * 8 * 32 * (0.5 + 0.75) / 2
    assert (own.positions, own.flops) == (planned.positions, planned.flops)
    assert found.measured["span/0"].spent == planned
    assert found.spent["span"].steps == pytest.approx(59)


def lines_of(made: MadeRuns, name: str, change: Callable[[list[str]], list[str]]) -> None:
    path = made.path(name) / "metrics.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


DAMAGES: dict[str, Callable[[list[str]], list[str]]] = {
    "empty": lambda lines: [],
    "garbage": lambda lines: ["{{{\n"] * len(lines),
    "cut": lambda lines: lines[:-1],
    "a line lost": lambda lines: [*lines[:2], *lines[3:]],
    "the first line lost": lambda lines: lines[1:],
    "no padding": lambda lines: [line.replace("padding", "x") for line in lines],
    "skipped alone": lambda lines: [run_records.line("skipped", 3, 0, {})],
}
UNKNOWN = "updates and real tokens are unknown for {}, whose metrics.jsonl is incomplete"


@pytest.mark.parametrize("damage", ["missing", *DAMAGES])
def test_a_verdict_says_that_what_runs_spent_is_not_known(damage, tmp_path, store, monkeypatch):
    made = MadeRuns(tmp_path, store, monkeypatch)
    (before,) = sentences.verdicts(made.results())
    for name in ("token/2", "span/1"):
        if damage == "missing":
            (made.path(name) / "metrics.jsonl").unlink()
        else:
            lines_of(made, name, DAMAGES[damage])
    found = made.results()
    assert found.excluded == {}
    (line,) = sentences.verdicts(found)
    assert line == f"{before[:-1]}{NOT_ALONE}{UNKNOWN.format('span/1 and token/2')}."
    judged = [row for row in report_files.rows_of(found) if row["verdict"] != "exploratory"]
    assert [row["verdict"].endswith(", not attributable") for row in judged] == [True]
    report_files.write(found, {str(store.path): store})
    page = html.unescape((made.workdir / "report.html").read_text())
    assert line in page
    spent = page.split("What each run spends")[1].split("</table>")[0]
    assert spent.count("not known") == 4
    config = found.ablation.variants[0].config
    assert f'<td class="number">{parameter_count(config.model, chosen(config.data)):,}<' in spent
    runs = json.loads((made.workdir / "report.json").read_text())["runs"]
    assert [name for name, own in runs.items() if not own["recorded"]] == ["span/1", "token/2"]


def test_confounds_that_are_known_are_said_beside_what_is_not(tmp_path, store):
    found = with_steps(made_results(tmp_path, store, {"a": -0.1}), "a", 1.33)
    name = "a/0"
    unknown = {name: dataclasses.replace(found.measured[name], is_recorded=False)}
    found = dataclasses.replace(found, measured={**found.measured, **unknown})
    (line,) = sentences.verdicts(found)
    assert line.endswith(f"{NOT_ALONE}updates; {UNKNOWN.format(name)}.")


def test_the_plan_says_before_the_runs_what_a_verdict_would_say(tmp_path, store, capsys):
    variants = {"rows of 8": {}, "rows of 4": {"phases[0].batch_size": 4}}
    file = ablated.write(tmp_path, variants=variants, equal="real_tokens")
    assert cli.main([*ablated.words(file, store, tmp_path / "A"), "--plan"]) == 0
    line = f"rows of 4: a verdict will add: with 100 % more updates{NOT_ALONE}updates"
    assert line in capsys.readouterr().out


def test_the_shipped_nsp_compares_nothing_but_its_setting(tmp_path):
    """At equal real tokens its packed variants have as many updates, positions and FLOPs."""
    store = small_store(tmp_path / "store", documents=300, sentences=60)
    values = plain(execute(shipped_ablations()["ablations/nsp"])) | {"store": str(store.path)}
    ablation, spent = budget.equalize_budgets(spec.parse_ablation(values), {str(store.path): store})
    reference = spent[ablation.reference]
    said = {name: budget.contrast(each, reference).text for name, each in spent.items()}
    assert said == dict.fromkeys(spent, "")


def with_objective(found: Results, variant: str, below: float, *, noise: float = 0.05) -> Results:
    """Results in which a variant was trained with sentence pairs, too.

    below: nats, of the mean loss below that of a constant answer.
    """
    rng, measured = np.random.default_rng(3), dict(found.measured)
    for name, each in found.measured.items():
        if each.run.variant != variant:
            continue
        own = each.forms[OWN]
        loss = 0.68 - below + rng.normal(0, noise, len(own.document))
        pairs = {"loss": loss, "count": np.ones(len(loss)), "correct": np.ones(len(loss))}
        form = dataclasses.replace(own, sums={**own.sums, "nsp": pairs})
        metrics = {**each.metrics[OWN], "nsp/loss": float(loss.mean()), "nsp/baseline_loss": 0.68}
        metrics["nsp/accuracy"] = 0.58
        measured[name] = dataclasses.replace(
            each, forms={**each.forms, OWN: form}, metrics={**each.metrics, OWN: metrics}
        )
    return dataclasses.replace(found, measured=measured)


@pytest.mark.parametrize(("below", "learned"), [(0.0, False), (-0.1, False), (0.1, True)])
def test_an_objective_that_was_not_learned_is_said_in_the_first_lines(
    below, learned, tmp_path, store, capsys
):
    made = made_results(tmp_path, store, {"a": -0.1})
    for variant in ("a", "reference"):
        found = with_objective(made, variant, below)
        lines = list(sentences.not_learned(found))
        if learned:
            assert lines == []
        else:
            (line,) = lines
            assert line.startswith(f"{variant}: Next sentence (NSP) was not learned: 0.")
            assert "a constant prediction 0.6800; the difference is between" in line
            if (variant, below) == ("reference", 0.0):
                report_files.write(found, {str(store.path): store})
                assert capsys.readouterr().out.splitlines()[2] == line
                page = html.unescape((tmp_path / "A/report.html").read_text())
                assert page.index(line) < page.index("<svg")


@pytest.mark.parametrize(("documents", "is_said"), [(2, False), (9, False), (10, True)])
def test_too_few_documents_do_not_show_that_an_objective_was_not_learned(
    documents, is_said, tmp_path, store
):
    """The interval of two documents reaches zero where the loss is far below a constant answer."""
    made = made_results(tmp_path, store, {"a": -0.1}, documents=documents)
    found = with_objective(made, "a", 0.0 if is_said else 0.1)
    assert bool(list(sentences.not_learned(found))) == is_said
    if not is_said:
        assert not list(sentences.not_learned(with_objective(made, "a", -0.1)))


def test_seeds_that_were_added_after_a_report_are_said_with_their_time(
    tmp_path, store, monkeypatch
):
    times = iter(f"2026-11-{day}T08:00:00+00:00" for day in (20, 21, 22, 23))
    monkeypatch.setattr(record, "_now", lambda: next(times))
    made = MadeRuns(tmp_path, store, monkeypatch)

    def claimed(*seeds: int) -> None:
        file = ablated.write(tmp_path, seeds=seeds)
        values = plain(execute(file)) | {"store": str(store.path)}
        record.claim(made.dir, spec.parse_ablation(values))

    claimed(0, 1, 2, 3)  # before any report: no matter
    record.note_report(made.dir, (0, 1, 2))
    record.note_report(made.dir, (0, 1, 2))  # the first one counts
    assert list(sentences.added_seeds(made.results())) == []
    claimed(0, 1, 2, 3, 4, 5)
    claimed(0, 1, 2, 3, 4, 5)
    (line,) = sentences.added_seeds(made.results())
    assert line.startswith(
        "Seeds added after the first report (2026-11-22T08:00:00+00:00): 4, 5 "
        "(2026-11-23T08:00:00+00:00). "
    )
    assert line in sentences.conclusions(made.results())


def test_a_report_of_some_planned_seeds_says_so_and_later_reports_know_it(
    tmp_path, store, monkeypatch
):
    made = MadeRuns(tmp_path, store, monkeypatch, seeds=(0, 1, 2, 3, 4))
    for seed in range(5):
        made.change_values(f"span/{seed}", lambda _, values: lower(values))
    hidden = []
    for run in made.runs:
        if run.seed > 2:
            path = made.path(f"{run.name}.npz")
            hidden.append((path, path.read_bytes()))
            path.unlink()
    found = made.results()
    (line,) = sentences.verdicts(found)
    assert line.endswith("after Holm's correction, 3 of 5 planned seeds).")
    (missing,) = sentences.missing_seeds(found)
    assert missing.startswith("Runs of planned seeds are missing: 3, 4. ")
    assert missing in sentences.conclusions(found)
    report_files.write(found, {str(store.path): store})
    report_files.write(found, {str(store.path): store})
    for path, data in hidden:
        path.write_bytes(data)
    record.claim(made.dir, made.ablation)  # as `ablate run` does
    found = made.results()
    assert list(sentences.missing_seeds(found)) == ["Earlier reports had, of 5 planned seeds: 3."]
    report_files.write(found, {str(store.path): store})
    assert record.seen(record.read_record(made.dir)) == [(0, 1, 2), (0, 1, 2, 3, 4)]


def lower(values: dict[str, Any]) -> None:
    for form, own in values.items():
        sums = own.sums["mlm"]
        sums = {**sums, "loss": sums["loss"] - np.float32(0.5)}
        values[form] = dataclasses.replace(own, sums={"mlm": sums})


def test_seeds_added_to_an_ablation_that_an_earlier_version_reported_are_said(
    tmp_path, store, monkeypatch
):
    made = MadeRuns(tmp_path, store, monkeypatch)
    path = made.workdir / "ablation.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({key: known[key] for key in ("config", "store")}))
    (made.workdir / "report.json").write_text("{}")
    values: dict[str, Any] = plain(execute(ablated.write(tmp_path, seeds=(0, 1, 2, 3))))
    record.claim(made.dir, spec.parse_ablation(values | {"store": str(store.path)}))
    (line,) = sentences.added_seeds(made.results())
    assert line.startswith("Seeds added after the first report: 3 (")


def test_two_variants_are_compared_with_each_other_where_the_file_asks(tmp_path, store):
    """It is exploratory: the verdicts and their correction are those without it."""
    alone = made_results(tmp_path, store, {"a": -0.1, "b": -0.3})
    values = dataclasses.replace(alone.ablation.values, against=(("b", "a"),))
    ablation = dataclasses.replace(alone.ablation, values=values)
    found = with_steps(dataclasses.replace(alone, ablation=ablation), "b", 1.33)
    line = sentences.conclusions(found)[2]
    assert line.startswith("b against a (exploratory): −0.")
    assert "(5 seeds)" in line
    assert line.endswith(f", with 33 % more updates{NOT_ALONE}updates.")
    rows = [row for row in report_files.rows_of(found) if row["variant"] == "b against a"]
    assert {row["verdict"] for row in rows} == {"exploratory"}
    assert rows[0]["difference"] == pytest.approx(-0.2, abs=0.01)
    assert found.verdicts == alone.verdicts
    report_files.write(found, {str(store.path): store})
    page = (tmp_path / "A/report.html").read_text()
    assert "b against a" in page
    assert not re.search(r"<!-- b against a -->", page), "no bar among those of the reference"


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ({"span": "ngramm"}, "'ngramm' is not a variant; did you mean ngram?"),
        ({"span": "token"}, "'span' and 'token'; give two variants other than the"),
        ({"span": "span"}, "'span' and 'span'; give two variants"),
    ],
)
def test_a_wrong_comparison_is_one_line(pair, said, tmp_path, store):
    variants = {"token": {}, "span": {"data.masking": "span"}, "ngram": {"data.masking": "ngram"}}
    values = plain(execute(ablated.write(tmp_path, variants=variants)))
    with pytest.raises(UserError, match="config.against: " + re.escape(said)):
        spec.parse_ablation(values | {"store": str(store.path), "against": list(pair.items())})


def shift(variant: str, run: str = "", **changes: Any) -> Any:
    """Returns a change of results: of all runs of a variant, or of one."""

    def change(found: Results) -> Results:
        chosen = (each for each in found.runs if each.variant == variant and run in (each.name, ""))
        own = {each.name: dataclasses.replace(found.measured[each.name], **changes)
               for each in chosen}  # fmt: skip
        return dataclasses.replace(found, measured={**found.measured, **own})

    return change


def without_learning(found: Results) -> Results:
    """The first run of b is worse than the unigram."""
    high = {form: {**own, "mlm/loss": 9.0} for form, own in found.measured["b/0"].metrics.items()}
    return shift("b", "b/0", metrics=high)(found)


UNJUDGED: dict[str, tuple[dict[str, int], Any, str]] = {
    "not as planned": (
        {}, lambda found: dataclasses.replace(found, unplanned={"b/1": ["config.seed=0, not 1"]}),
        "no comparison: b/1 is not as planned",
    ),
    "two seeds": ({"seeds": 2}, lambda found: found,
                  "no comparison with 2 seeds; at least 3 are needed"),
    "few documents": ({"documents": 8}, lambda found: found,
                      "no comparison with 8 effective documents; at least 10 are needed"),
    "failed more": ({}, without_learning,
                    "no comparison in its favour: 1 run of it failed, 0 of a"),
    "no seed in both": (
        {}, lambda found: dataclasses.replace(found, measured={
            name: each for name, each in found.measured.items() if each.run.variant != "b"}),
        "no seed has ended in both this variant and a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNJUDGED)
def test_a_further_comparison_follows_the_rules_of_a_verdict(case, tmp_path, store):
    options, change, said = UNJUDGED[case]
    made = made_results(tmp_path, store, {"a": 0.0, "b": -0.3}, **options)
    values = dataclasses.replace(made.ablation.values, against=(("b", "a"),))
    ablation = dataclasses.replace(made.ablation, values=values)
    found = change(dataclasses.replace(made, ablation=ablation))
    (line,) = sentences.against(found)
    assert line.startswith(f"b against a (exploratory): {said}")
