"""`config.task.retrieval`: each evaluation of a run searches a folder as `evaluate --retrieval`."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_task import pairs_config, task_config, write_pairs, write_search

from bert_jax import cli
from bert_jax.api.run_search import RunSearch
from bert_jax.api.vector_evaluation import evaluate_retrieval
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.errors import StoppedError, UserError
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.runs import finetune
from bert_jax.metrics.run_records import compared, read_records, records
from bert_jax.reporting.html import Page
from bert_jax.reporting.run_page import Logged, add_training
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir

MEASURES = ("nDCG@10", "recall@1", "recall@10", "MRR@10")
PROMPTS = {"task__query_prompt": "dal ", "task__passage_prompt": "bel "}


def search_config(folder: Path, **changes: Any) -> Config:
    """A run of three epochs, each with one evaluation, that searches a folder."""
    write_pairs(folder)
    beir = write_search(folder)
    made = {
        "task__retrieval": str(beir), "task__epochs": 3.0, "mesh__data": -1,
        "checkpoint__keep_start": True, "checkpoint__keep": 10, **PROMPTS,
    }  # fmt: skip
    return pairs_config(folder, "sentence_pairs", **{**made, **changes})


def evaluated(model: str, folder: str) -> dict[str, dict[str, float | None]]:
    """The measures of a model and of BM25, as `evaluate --retrieval` has them."""
    found: dict[str, dict[str, float | None]] = {}
    for row in evaluate_retrieval(model, folder).rows:
        found.setdefault(row.model, {})[row.measure] = row.found.value
    return found


def searched(run: Path) -> dict[int, dict[str, float]]:
    """The measures of each evaluation, by its step."""
    evals = read_records(Workdir.open(run).metrics, "eval")
    return {r["step"]: {name: r[f"task/{name}"] for name in MEASURES} for r in evals}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2, "task__dense": "25,13"}]
)
def test_each_epoch_measures_what_evaluate_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict
) -> None:
    """Of each checkpoint, of step 0, and BM25: the same numbers, on any devices."""
    pytest.importorskip("bm25s")
    config = search_config(tmp_path / "task", **changes)
    run, beir = tmp_path / "run", config.task.retrieval
    finetune(config, run, open_search=RunSearch)
    said = capsys.readouterr().out
    found = searched(run)
    assert len(found) == 3
    for step, values in found.items():
        other = evaluated(f"{run}@{step}", beir)[f"{run}@{step}"]
        assert values == pytest.approx(other, abs=1e-6)
    assert evaluated(str(run), beir).keys() == {str(run), f"{run}@0", "BM25"}
    start = evaluated(f"{run}@0", beir)
    assert start.keys() == {f"{run}@0", "BM25"}
    beside = compared(records(Workdir.open(run).metrics))
    assert beside["untrained (step 0)"] == pytest.approx(start[f"{run}@0"], abs=1e-6)
    assert beside["BM25"] == pytest.approx(start["BM25"])
    last = read_records(Workdir.open(run).metrics, "eval")[-1]
    assert last["error"] == pytest.approx(1 - last["task/nDCG@10"])
    assert f"nDCG@10 {last['task/nDCG@10']:.4f}" in said
    assert f"BM25: nDCG@10 {beside['BM25']['nDCG@10']:.4f}" in said
    page = Page("")
    add_training(page, Logged.read(Workdir.open(run).metrics))
    page.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    shown = f"{beside['untrained (step 0)']['nDCG@10']:.4f}"
    assert ">untrained (step 0)<" in text
    assert f">{shown}<" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scored_pairs", "labeled_pairs"])
def test_other_kinds_of_vectors_search_too(tmp_path: Path, kind: str) -> None:
    searching = search_config(tmp_path / "task")
    changes = {"task__epochs": 1.0, "task__query_prompt": "dal ", "mesh__data": -1}
    config = pairs_config(
        tmp_path / "task", kind, task__retrieval=searching.task.retrieval, **changes
    )
    finetune(config, tmp_path / "run", open_search=RunSearch)
    ((step, found),) = searched(tmp_path / "run").items()
    model = f"{tmp_path / 'run'}@{step}"
    assert found == pytest.approx(evaluated(model, config.task.retrieval)[model], abs=1e-6)


@pytest.mark.slow
def test_a_stopped_run_searches_with_the_same_results(tmp_path: Path) -> None:
    config = search_config(tmp_path / "task")
    finetune(config, tmp_path / "whole", open_search=RunSearch)
    whole = searched(tmp_path / "whole")
    first, *_ = whole
    for stop in (0, first, first + 3):
        run = tmp_path / f"stopped{stop}"
        if stop:
            options = RunOptions(stop_after=stop)
            with pytest.raises(StoppedError):
                finetune(config, run, options=options, open_search=RunSearch)
        finetune(config, run, open_search=RunSearch)
        assert searched(run) == whole
        beside = [compared(records(Workdir.open(one).metrics)) for one in (run, tmp_path / "whole")]
        assert beside[0] == beside[1]
    other = Path(config.task.retrieval) / "qrels/dev.tsv"
    other.write_text("".join(other.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="retrieval"):
        finetune(config, tmp_path / "whole", open_search=RunSearch)


def flags_of(config: Config) -> list[str]:
    """A configuration as flags over those of `glue`."""
    plain = flatten(to_dict(Config()))
    given = flatten(to_dict(config)).items()
    return [f"--config.{key}={value}" for key, value in given if value != plain.get(key)]


@pytest.mark.slow
def test_seeds_have_their_results_beside_bm25_and_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first measure of a search decides which step and which seed is the best."""
    pytest.importorskip("bm25s")
    config = search_config(tmp_path / "task", task__epochs=1.0, task__keep="best")
    words = ["finetune", "--config=glue", *flags_of(config), f"--workdir={tmp_path / 'runs'}"]
    assert cli.main([*words, "--seeds=2"]) == 0
    said = capsys.readouterr().out
    results = json.loads((tmp_path / "runs/results.json").read_text())
    assert results["metrics"] == [*MEASURES, "accuracy", "mrr"]
    for run in results["runs"]:
        (found,) = searched(tmp_path / "runs" / run["run"]).values()
        assert {name: run[name] for name in MEASURES} == found
    starts = [run["beside"]["untrained (step 0)"]["nDCG@10"] for run in results["runs"]]
    assert starts[0] != starts[1]  # the values are drawn by the seed
    assert results["baselines"]["untrained (step 0)"]["nDCG@10"] == pytest.approx(sum(starts) / 2)
    assert results["baselines"]["BM25"] == results["runs"][0]["beside"]["BM25"]
    assert results["baselines"]["shared words"].keys() == {"accuracy", "mrr"}
    rows = [line.split() for line in said.splitlines()]
    (words_row,) = (row for row in rows if row[:2] == ["shared", "words"])
    assert words_row[2:6] == ["-"] * 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda beir: beir.rename(beir.with_name("gone")), "no such folder; give one with queries"),
        (lambda beir: (beir / "corpus.jsonl").unlink(), "no corpus; one of corpus.jsonl"),
        (
            lambda beir: (beir / "corpus.jsonl").write_text('{"_id": "corpus0", "text": "dal"}\n'),
            "dev.tsv: row 3: id 'corpus1' is not in",
        ),
    ],
)
def test_a_folder_that_cannot_be_searched_ends_a_run_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any, message: str
) -> None:
    config = search_config(tmp_path / "task")
    damage(Path(config.task.retrieval))
    words = ["finetune", "--config=glue", *flags_of(config), f"--workdir={tmp_path / 'run'}"]
    assert cli.main(words) == 1
    (*_, line) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()


def test_a_task_without_vectors_refuses_a_search(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.task\.retrieval=x has no effect for rte; leave"):
        check_task(task_config(tmp_path, task__retrieval="x"))
