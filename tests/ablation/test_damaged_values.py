"""Values of a run that are not as they are written exclude this run by its name, wherever a report
would compute with them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import small_store
from made_runs import MadeRuns
from small_task import write_task

from bert_jax import cli
from bert_jax.ablation import report_files, sentences
from bert_jax.ablation.stores import open_stores
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.training import per_example

Change = Callable[[dict[str, Any], dict[str, Any]], None]
NAN = float("nan")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def made(tmp_path: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> MadeRuns:
    return MadeRuns(tmp_path, store, monkeypatch)


def metrics(**changes: Any) -> Change:
    """Returns a change of the metrics of all forms, by their names without the objective."""

    def change(about: dict[str, Any], _: Any) -> None:
        for own in about["forms"].values():
            for name in list(own["metrics"]):
                if name.rpartition("/")[2] in changes:
                    own["metrics"][name] = changes[name.rpartition("/")[2]]

    return change


def without_metrics(about: dict[str, Any], _: Any) -> None:
    for own in about["forms"].values():
        own["metrics"].clear()


def arrays(**changes: Any) -> Change:
    def change(_: Any, values: dict[str, Any]) -> None:
        for form, own in values.items():
            new = {name: np.full(len(own.document), value) for name, value in changes.items()}
            values[form] = dataclasses.replace(own, **new)

    return change


def sums(change_of: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def change(_: Any, values: dict[str, Any]) -> None:
        for form, own in values.items():
            values[form] = dataclasses.replace(own, sums=change_of(dict(own.sums)))

    return change


def of_objective(**changes: Any) -> Change:
    """Returns a change of the sums of every objective; None removes one."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        return {
            objective: {
                name: np.full_like(values, changes[name]) if name in changes else values
                for name, values in own.items()
                if changes.get(name, 0) is not None
            }
            for objective, own in found.items()
        }

    return sums(change)


def first(name: str, value: float) -> Change:
    """Returns a change of a sum of the first example."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        where = np.arange(len(found["mlm"][name])) == 0
        return {"mlm": {**found["mlm"], name: np.where(where, value, found["mlm"][name])}}

    return sums(change)


CASES: dict[str, tuple[Change, str]] = {
    "a loss below zero": (first("loss", -1e30), "mlm/loss in"),
    "a small loss below zero": (first("loss", -0.1), "mlm/loss in"),
    "a mean below zero": (metrics(loss=-1e30), "mlm/loss in"),
    "a trivial loss below zero": (metrics(baseline_loss=-1.0), "mlm/baseline_loss in"),
    "an accuracy above 1": (metrics(accuracy=1e30), "mlm/accuracy in"),
    "an accuracy below 0": (metrics(accuracy=-0.5), "mlm/accuracy in"),
    "more right answers than answers": (first("correct", 2.0), "mlm/correct in"),
    "right answers below zero": (first("correct", -1e30), "mlm/correct in"),
    "a bigram below zero": (lambda about, _: about.update(bigram_loss=-1.0), "bigram_loss"),
    "no metrics": (without_metrics, "mlm/loss in"),
    "loss of text": (metrics(loss="x"), "mlm/loss in"),
    "loss of a list": (metrics(loss=[1.0]), "mlm/loss in"),
    "baseline null": (metrics(baseline_loss=None), "not finite: mlm/baseline_loss in"),
    "baseline NaN": (metrics(baseline_loss=NAN), "not finite: mlm/baseline_loss in"),
    "documents are no numbers": (arrays(document=NAN), "document in"),
    "a document below zero": (arrays(document=-1), "document in"),
    "a source that is not": (arrays(source=np.uint16(7)), "source in"),
    "another objective": (sums(lambda own: {"zzz": own["mlm"]}), "objective in"),
    "one more objective": (sums(lambda own: {**own, "zzz": own["mlm"]}), "objective in"),
    "no objective": (sums(lambda _: {}), "objective in"),
    "no loss": (of_objective(loss=None), "mlm in"),
    "no count": (of_objective(count=None), "mlm in"),
    "no right answers": (of_objective(correct=None), "measured on other examples in"),
    "counts of zero": (of_objective(count=0), "mlm/count in"),
    "counts below zero": (of_objective(count=-1), "mlm/count in"),
    "no bigram": (lambda about, _: about.pop("bigram_loss"), "not all values are those"),
}


@pytest.mark.parametrize("name", ["token/0", pytest.param("span/1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_a_run_with_damaged_values_is_excluded_by_its_name(case, name, made):
    change, said = CASES[case]
    made.change_values(name, change)
    found = made.results()
    assert list(found.excluded) == [name]
    assert said in found.excluded[name]
    assert found.primary["span"].seeds == 2
    assert any(
        line.startswith(f"{name} is left out of all means: ")
        for line in sentences.conclusions(found)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (metrics(baseline_loss=NAN), "single_label_classification/baseline_loss in task/rte"),
        (without_metrics, "single_label_classification/loss in task/rte"),
        (of_objective(count=0), "single_label_classification/count in task/rte"),
        (of_objective(loss=-1e30), "single_label_classification/loss in task/rte"),
        (of_objective(correct=3), "single_label_classification/correct in task/rte"),
        (sums(lambda _: {}), "objective in task/rte"),
        (sums(lambda own: dict.fromkeys("ab", *own.values())), "objective in task/rte"),
    ],
)
def test_damaged_values_of_a_task_exclude_their_run(change, said, tmp_path, store, monkeypatch):
    tasks = {"rte": {"task.data": str(write_task(tmp_path / "task")), "phases[0].seq_length": 32}}
    measures = ("single/token", "task/rte")
    made = MadeRuns(tmp_path, store, monkeypatch, measures=measures, tasks=tasks)
    path = made.path("span/1") / "tasks" / "rte.npz"
    values, about = per_example.read_losses(path)
    change(about, values)
    per_example.write(path, values, about)
    found = made.results()
    assert list(found.excluded) == ["span/1"]
    assert said in found.excluded["span/1"]
    assert sentences.conclusions(found)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1500])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_program(path: Path) -> None:
    np.savez(path, weights=np.ones(3))


@pytest.mark.parametrize("damage", [cut, empty, of_another_program])
@pytest.mark.parametrize("place", [".npz", "/tasks/rte.npz"])
def test_a_file_of_values_that_cannot_be_read_excludes_its_run_alone(
    damage, place, tmp_path, store, monkeypatch, capsys
):
    tasks = {"rte": {"task.data": str(write_task(tmp_path / "task")), "phases[0].seq_length": 32}}
    measures = ("single/token", "task/rte")
    made = MadeRuns(tmp_path, store, monkeypatch, measures=measures, tasks=tasks)
    path = Path(f"{made.path('span/1')}{place}")
    damage(path)
    found = made.results()
    assert list(found.excluded) == ["span/1"]
    said = f"{path}: not a file of `bert-jax evaluate --per_example` ("
    assert said in found.excluded["span/1"]
    assert "delete it, and `bert-jax ablate run` measures the run again" in found.excluded["span/1"]
    assert found.primary["span"].seeds == 2
    assert cli.main(["ablate", "report", f"--workdir={made.workdir}"]) == 0
    assert "span: no verdict: span/1 is not as planned." in capsys.readouterr().out


def test_what_rounding_leaves_beyond_the_bounds_is_no_damage(made):
    made.change_values("token/0", first("loss", -1e-6))
    made.change_values("token/1", first("correct", 1 + 1e-6))
    assert made.results().excluded == {}


def record(kind: str, step: int, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "phase": 0, "time": 1.0, **values}


def write_records(made: MadeRuns, name: str, *records: dict[str, Any]) -> None:
    text = "".join(json.dumps(each) + "\n" for each in records)
    (made.path(name) / "metrics.jsonl").write_text(text)


@pytest.mark.parametrize(
    "records",
    [[record("skipped", step) for step in range(60)], [record("train", 10, padding=1.0)]],
    ids=["every update skipped", "padding alone"],
)
def test_runs_that_spent_nothing_are_excluded(records, made):
    for seed in range(3):
        write_records(made, f"span/{seed}", *records)
    found = made.results()
    assert list(found.excluded) == ["span/0", "span/1", "span/2"]
    assert "no update that was not skipped, or no token" in found.excluded["span/0"]
    assert sentences.conclusions(found)


def test_records_of_other_types_leave_the_page_without_them(made):
    write_records(
        made, "span/1",
        record("start", 0, versions="x"), record("eval", 10, **{"mlm/loss": "x"}),
        record("train", 20, padding=5.0, peak_bytes=3, tokens_per_second="q"),
        record("eval", 30), record("eval", 60, **{"mlm/loss": 5.0}),
    )  # fmt: skip
    made.change_values("span/1", metrics(accuracy=None))
    made.change_values(
        "span/2", lambda about, _: about["forms"]["own"]["metrics"].pop("mlm/accuracy")
    )
    found = made.results()
    assert found.excluded == {}
    assert found.spent["span"] == found.planned["span"]
    report_files.write(found, open_stores(made.ablation.variants))
    page = (made.workdir / "report.html").read_text()
    assert "While training" in page
    assert "None" not in page.split("Objectives that a variant")[1].split("</table>")[0]


def test_where_no_run_counts_the_reasons_are_said(made, capsys):
    for run in made.runs:
        made.change_values(run.name, without_metrics)
    assert cli.main(["ablate", "report", f"--workdir={made.workdir}"]) == 1
    err = capsys.readouterr().err
    assert "no run can be compared. token/0 is left out of all means: not as planned: mlm/" in err
    assert err.count("\n") == 1


def other_document(_: Any, values: dict[str, Any]) -> None:
    form = "single/token:32"
    values[form] = dataclasses.replace(values[form], document=values[form].document[::-1])


def other_source(_: Any, values: dict[str, Any]) -> None:
    form = "single/token:32"
    values[form] = dataclasses.replace(values[form], source=1 - values[form].source)


@pytest.mark.parametrize("change", [other_document, other_source])
@pytest.mark.parametrize("damaged", [["token/0"], ["token/0", "token/1"]])
def test_runs_on_other_examples_than_most_are_excluded(damaged, change, made):
    for name in damaged:
        made.change_values(name, change)
    found = made.results()
    assert list(found.excluded) == damaged
    said = "measured on other examples in single/token:32 than other runs (removing its .npz"
    assert said in found.excluded[damaged[0]]
    assert sentences.verdicts(found)[0].startswith("span: no verdict: ")


def test_where_as_many_runs_have_other_examples_all_are_named(made):
    for seed in range(3):
        made.change_values(f"token/{seed}", other_document)
    assert list(made.results().excluded) == [run.name for run in made.runs]
