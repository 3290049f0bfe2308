"""A verdict compares runs that are what the plan says, or names what is not and gives none."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ablated
import numpy as np
import pytest
from corpus import small_store
from made_runs import MadeRuns
from small_task import write_task

from bert_jax import cli
from bert_jax.ablation import record, sentences, spec
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.training import per_example
from bert_jax.workdir import description


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def made(tmp_path: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> MadeRuns:
    return MadeRuns(tmp_path, store, monkeypatch)


def copied(made: MadeRuns, source: str, target: str) -> None:
    shutil.rmtree(made.path(target))
    shutil.copytree(made.path(source), made.path(target))
    shutil.copy(f"{made.path(source)}.npz", f"{made.path(target)}.npz")


def swapped(made: MadeRuns) -> None:
    for suffix in ("", ".npz"):
        one, two = (Path(f"{made.path(name)}{suffix}") for name in ("token/0", "span/0"))
        spare = made.workdir / f"spare{suffix}"
        one.rename(spare)
        two.rename(one)
        spare.rename(two)


def edited(folder: Path, **changes: Any) -> None:
    """Changes config.json alone; the checkpoint says what it said."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def set_in_config(key: str, value: Any, run: str = "span/1") -> Callable[[MadeRuns], None]:
    def change(known: dict[str, Any]) -> None:
        *path, last = key.split(".")
        place = known
        for part in path:
            place = place[int(part)] if part.isdigit() else place[part]
        place[last] = value

    return lambda made: made.change_config(run, change)


def set_in_values(key: str, value: Any) -> Callable[[MadeRuns], None]:
    return lambda made: made.change_values("span/1", lambda about, _: about.update({key: value}))


def other_form(made: MadeRuns) -> None:
    def change(about: dict[str, Any], _: Any) -> None:
        about["forms"]["single/token:32"]["settings"]["mask_rate"] = 0.4

    made.change_values("span/1", change)


ADOPTED = [{"step": 20, "run_id": "feed", "state": "x", "why": "of another run"}]
CASES: dict[str, tuple[Callable[[MadeRuns], None], str]] = {
    "one run copied to another seed": (
        lambda made: copied(made, "span/0", "span/1"),
        "config.seed=0, not 1; run_id 0000000000000001, which is also that of span/0",
    ),
    "a run of the reference under the variant": (
        lambda made: copied(made, "token/1", "span/1"),
        "config.data.masking='token', not 'span'; run_id 0000000000000002, which is also that of",
    ),
    "another run id would be the copy": (
        lambda made: (copied(made, "span/0", "span/1"), set_in_config("config.seed", 1)(made)),
        "run_id 0000000000000001, which is also that of span/0",
    ),
    "two runs swapped": (swapped, "config.data.masking='token', not 'span'"),
    "a base edited between runs": (
        set_in_config("config.optimizer.learning_rate", 0.02),
        "config.optimizer.learning_rate=0.02, not 0.01",
    ),
    "more steps": (set_in_config("config.phases.0.steps", 70), "config.phases[0].steps=70, not 60"),
    "other training text": (set_in_config("data.train", "ab" * 32), "data.train abababababab, not"),
    "another tokenizer": (
        set_in_config("data.tokenizer", "cd" * 32),
        "data.tokenizer cdcdcdcdcdcd,",
    ),
    "an adopted checkpoint": (set_in_config("adopted", ADOPTED), "step 20 adopted from run feed"),
    "other held-out text": (
        set_in_values("held_out", "ef" * 32),
        "held-out text efefefefefef, not",
    ),
    "sources in another order": (
        set_in_values("sources", ["books", "wiki"]),
        "sources books, wiki, not wiki, books",
    ),
    "another form": (other_form, "measured in single/token:32 with mask_rate=0.4, not 0.15"),
    "a damaged config.json": (
        lambda made: (made.path("span/1") / "config.json").write_text('{"config": 1}'),
        "span/1/config.json cannot be read",
    ),
    "no config.json": (
        lambda made: (made.path("span/1") / "config.json").unlink(),
        "span/1/config.json is missing",
    ),
    "a copy without config.json": (
        lambda made: (
            copied(made, "span/0", "span/1"),
            (made.path("span/1") / "config.json").unlink(),
        ),
        "span/1/config.json is missing; config.seed=0, not 1; run_id 0000000000000001, which is",
    ),
    "a config.json of another run than its checkpoint": (
        lambda made: edited(made.path("span/1"), run_id="feed"),
        "config.json and its checkpoints are of runs feed, 0000000000000003",
    ),
    "a copy whose config.json says another run": (
        lambda made: (
            copied(made, "span/0", "span/1"),
            edited(made.path("span/1"), run_id="feed"),
        ),
        "are of runs feed, 0000000000000001; config.seed=0, not 1; run_id 0000000000000001, which",
    ),
}


def test_runs_as_planned_have_verdicts(made):
    found = made.results()
    assert found.unplanned == {}
    assert len(found.measured) == 6
    assert "no verdict" not in sentences.verdicts(found)[0]


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_another_is_named_and_nothing_is_said_of_its_variant(case, made):
    change, said = CASES[case]
    change(made)
    found = made.results()
    name = "span/0" if case.startswith("two") else "span/1"
    assert said in found.excluded[name]
    assert found.excluded[name].startswith("not as planned: ")
    (verdict,) = sentences.verdicts(found)
    assert verdict.startswith("span: no verdict: ")
    assert name in verdict
    assert verdict.endswith("not as planned.")
    assert found.verdicts.get("span") is None or found.verdicts["span"].shown is None
    assert 1 not in found.of("span") or name != "span/1", "it is in no mean"


def test_a_run_of_the_reference_that_is_another_leaves_no_verdict_at_all(made):
    made.change_config("token/2", lambda known: known["config"]["optimizer"].update(eps=1e-3))
    found = made.results()
    assert sentences.verdicts(found) == ["span: no verdict: token/2 is not as planned."]
    line = (
        "token/2 is left out of all means: not as planned: config.optimizer.eps=0.001, not 1e-06."
    )
    assert line in sentences.conclusions(found)


def test_copies_of_one_run_without_their_config_json_give_no_verdict(made):
    for seed in (1, 2):
        copied(made, "span/0", f"span/{seed}")
        (made.path(f"span/{seed}") / "config.json").unlink()
    (verdict,) = sentences.verdicts(made.results())
    assert verdict == "span: no verdict: span/0, span/1, span/2 are not as planned."


def test_each_workdir_is_read_once(tmp_path, store, monkeypatch):
    made, read = task_runs(tmp_path, store, monkeypatch), []
    plain = description.read_description
    monkeypatch.setattr(
        description, "read_description", lambda own: read.append(str(own)) or plain(own)
    )
    made.results()
    assert sorted(read) == sorted(set(read))
    assert len(read) == 2 * len(made.runs)


def test_paths_of_the_data_may_change(made):
    """A store that was copied elsewhere is the same by its digests."""
    made.change_config("span/1", lambda known: known["config"]["data"].update(store="/elsewhere"))
    assert made.results().unplanned == {}


@pytest.mark.parametrize("other", ["span", "ngram"])
def test_other_variants_keep_their_verdicts_corrected_for_all_that_were_planned(
    other, tmp_path, store, monkeypatch
):
    variants = {"token": {}, "span": {"data.masking": "span"}, "ngram": {"data.masking": "ngram"}}
    made = MadeRuns(tmp_path, store, monkeypatch, variants=variants, seeds=(0, 1, 2, 3))
    made.change_config(f"{other}/1", lambda known: known["config"].update(seed=7))
    found = made.results()
    (kept,) = {"span", "ngram"} - {other}
    assert found.verdicts[kept].adjusted_p == min(1.0, 2 * found.primary[kept].p)
    said = dict(line.split(": ", 1) for line in sentences.verdicts(found))
    assert said[other] == f"no verdict: {other}/1 is not as planned."
    assert "no verdict" not in said[kept]


def test_variants_that_are_not_measured_yet_count_in_the_correction(tmp_path, store, monkeypatch):
    variants = {"token": {}, "span": {"data.masking": "span"}, "ngram": {"data.masking": "ngram"}}
    made = MadeRuns(tmp_path, store, monkeypatch, variants=variants)
    for seed in range(3):
        Path(f"{made.path(f'ngram/{seed}')}.npz").unlink()
    found = made.results()
    assert list(found.primary) == ["span"]
    assert found.verdicts["span"].adjusted_p == min(1.0, 2 * found.primary["span"].p)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["single/token:32", "single/span:32"])
def test_a_run_with_values_that_are_not_finite_is_named_and_in_no_mean(value, form, made):
    def change(_: Any, values: dict[str, Any]) -> None:
        sums = {**values[form].sums["mlm"]}
        sums["loss"] = np.where(np.arange(len(sums["loss"])) < 3, value, sums["loss"])
        values[form] = dataclasses.replace(values[form], sums={"mlm": sums})

    made.change_values("token/1", change)
    found = made.results()
    said = f"held-out values are not finite: 3 of 200 of mlm/loss in {form}"
    assert found.excluded == {"token/1": said}
    assert found.primary["span"].seeds == 2
    assert np.isfinite(found.primary["span"].p)


def test_a_loss_that_json_cannot_hold_excludes_its_run(made):
    made.change_values(
        "span/1", lambda about, _: about["forms"]["own"]["metrics"].update({"mlm/loss": None})
    )
    assert made.results().excluded == {"span/1": "held-out values are not finite: mlm/loss in own"}


def test_versions_and_devices_that_differ_are_named(made):
    made.change_config("span/1", lambda known: known["versions"].update(jax="0.8"))
    found = made.results()
    line = "Not all runs were made with the same jax: 0.9 ("
    assert [said for said in sentences.conclusions(found) if said.startswith(line)]
    assert "no verdict" not in sentences.verdicts(found)[0]


def task_runs(
    folder: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> MadeRuns:
    """Runs that are fine-tuned for a task, too."""
    data = write_task(folder / "task")
    settings = {"task.name": "rte", "task.data": str(data), "phases[0].seq_length": 32}
    measures = ("single/token", "task/pairs")
    options = {"tasks": {"pairs": settings}, "measures": measures, "primary": "task/pairs"}
    return MadeRuns(folder, store, monkeypatch, **options, **changes)


def test_a_task_starts_with_the_theta_of_the_last_phase(tmp_path, store, monkeypatch):
    """That of the checkpoint, which `finetune` takes."""
    own = {"model__position": "rotary", "phases[0]__global_rope_theta": 20.0}
    assert task_runs(tmp_path, store, monkeypatch, **own).results().unplanned == {}


TASK_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a file of the task edited": (
        {"data.train": "ab" * 32},
        "task/pairs: data.train abababababab, not ",
    ),
    "another seed": ({"config.seed": 5}, "task/pairs: config.seed=5, not 1"),
    "another recipe": (
        {"config.optimizer.learning_rate": 1.0},
        "task/pairs: config.optimizer.learning_rate=1.0, not ",
    ),
    "from another run": (
        {"config.init": "/elsewhere/A/runs/token/1"},
        "task/pairs: config.init=/elsewhere/A/runs/token/1, not ",
    ),
    "the id of another": ({"run_id": f"f{0:015x}"}, "f000000000000000, which is also that of"),
    "values of another": ({"run_id": "feed"}, "task/pairs: its values are those of another run"),
}


@pytest.mark.parametrize("case", TASK_CASES)
def test_a_fine_tuned_run_that_is_another_is_named(case, tmp_path, store, monkeypatch):
    made = task_runs(tmp_path, store, monkeypatch)
    assert made.results().unplanned == {}
    values, said = TASK_CASES[case]
    for key, value in values.items():
        set_in_config(key, value, "span/1/tasks/pairs")(made)
    found = made.results()
    assert said in found.excluded["span/1"]
    assert found.verdicts["span"].shown is None


def test_paths_of_a_task_may_change_and_what_its_examples_decide(tmp_path, store, monkeypatch):
    """The whole ablation was copied elsewhere, and its steps are those of its epochs."""
    made = task_runs(tmp_path, store, monkeypatch)
    for key, value in {
        "config.init": "/elsewhere/A/runs/span/1", "config.task.data": "/elsewhere",
        "config.phases.0.steps": 7, "config.optimizer.warmup_steps": 2,
        "config.checkpoint.every_steps": 3, "config.evaluation.every_steps": 3,
    }.items():  # fmt: skip
        for run in made.runs:
            own = value.replace("span/1", run.name) if isinstance(value, str) else value
            set_in_config(key, own, f"{run.name}/tasks/pairs")(made)
            of_task(made, run.name, step=7)
    assert made.results().unplanned == {}


def of_task(made: MadeRuns, run: str, **changes: Any) -> None:
    """Changes what the file of a task's values says of them."""
    path = made.path(run) / "tasks" / "pairs.npz"
    values, about = per_example.read_losses(path)
    per_example.write(path, values, about | changes)


def fewer_steps(made: MadeRuns) -> None:
    for key, value in {"config.phases.0.steps": 3, "config.optimizer.warmup_steps": 1}.items():
        set_in_config(key, value, "span/1/tasks/pairs")(made)
    of_task(made, "span/1", step=3)


def without_folder(made: MadeRuns) -> None:
    place = made.path("span/1") / "tasks"
    shutil.rmtree(place / "pairs")
    shutil.copy(made.path("span/0") / "tasks" / "pairs.npz", place / "pairs.npz")


def one_model(made: MadeRuns) -> None:
    for seed in (1, 2):
        set_in_config("data.init", "ab" * 32, f"span/{seed}/tasks/pairs")(made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (fewer_steps, "task/pairs: config.phases[0].steps=3, not "),
        (without_folder, "span/1/tasks/pairs is missing"),
        (lambda made: of_task(made, "span/1", step=0), "task/pairs: measured at step 0, not "),
        (
            lambda made: (made.path("span/1") / "tasks" / "pairs" / "config.json").unlink(),
            "span/1/tasks/pairs/config.json is missing",
        ),
        (
            lambda made: edited(made.path("span/1") / "tasks" / "pairs", run_id="feed"),
            "checkpoints are of runs feed, f000000000000003",
        ),
        (one_model, "fine-tuned from the model abababababab, as span/2"),
    ],
)
def test_fine_tuned_runs_are_compared_with_each_other(change, said, tmp_path, store, monkeypatch):
    made = task_runs(tmp_path, store, monkeypatch)
    change(made)
    found = made.results()
    assert said in found.excluded["span/1"]
    assert found.verdicts["span"].shown is None


def test_a_file_of_a_task_edited_between_commands_is_refused(tmp_path, store, monkeypatch):
    made = task_runs(tmp_path, store, monkeypatch)
    record.claim(made.dir, made.ablation)
    path = tmp_path / "task" / "dev.tsv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    message = r"config\.tasks: the examples differ from those .*\(pairs\.held_out\)"
    with pytest.raises(UserError, match=message):
        record.claim(made.dir, made.ablation)


BASE = "from configs import tiny\n\n\ndef get_config():\n    return tiny.get_config()\n"
RUNS_CODE = "import pathlib\npathlib.Path({!r}).write_text('executed')\n"


def with_base(folder: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> MadeRuns:
    """Runs whose base is a file, which from now on writes another one when it is executed."""
    base = folder / "base.py"
    base.write_text(BASE)
    plain = ablated.FILE
    monkeypatch.setattr(ablated, "FILE", plain.replace('base="tiny"', f'base="{base}"'))
    made = MadeRuns(folder, store, monkeypatch)
    base.write_text(RUNS_CODE.format(str(folder / "trace")) + BASE)
    return made


def test_a_report_executes_nothing_that_a_workdir_names(tmp_path, store, monkeypatch, capsys):
    made = with_base(tmp_path, store, monkeypatch)
    assert cli.main(["ablate", "report", f"--workdir={made.workdir}"]) == 0
    assert not (tmp_path / "trace").exists()
    assert (made.workdir / "report.html").exists()
    known = json.loads((made.workdir / "ablation.json").read_text())
    assert known["first_report"]["seeds"] == "0,1,2"
    del known["base"]
    (made.workdir / "ablation.json").write_text(json.dumps(known))
    capsys.readouterr()
    assert cli.main(["ablate", "report", f"--workdir={made.workdir}"]) == 1
    err = capsys.readouterr().err
    assert "run the same `bert-jax ablate run`" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "trace").exists()


def test_a_base_edited_since_is_refused_by_its_key(tmp_path, store, monkeypatch):
    made = with_base(tmp_path, store, monkeypatch)
    base = tmp_path / "base.py"
    base.write_text(BASE.replace("return tiny.get_config()", "config = tiny.get_config()\n"
                                 "    config.optimizer.b2 = 0.9\n    return config"))  # fmt: skip
    edited = spec.parse_ablation(record.read_record(made.dir)["config"])
    with pytest.raises(UserError, match=r"base.py: the base of .* has optimizer\.b2=0\.999, not 0"):
        record.claim(made.dir, edited)


def test_a_record_of_an_earlier_version_takes_what_it_lacks(made):
    """And a shipped base is read by its name."""
    path = made.workdir / "ablation.json"
    whole = json.loads(path.read_text())
    old = {"config": {k: v for k, v in whole["config"].items() if k != "consequences"}}
    old["store"] = {k: v for k, v in whole["store"].items() if k != "sources"}
    path.write_text(json.dumps(old))
    known = record.read_record(made.dir)
    assert record.base_of(made.dir, known) is None
    assert made.results().unplanned == {}
    record.claim(made.dir, made.ablation)
    now = json.loads(path.read_text())
    assert {**now, "seeds": 0} == {**whole, "seeds": 0}
    assert now["seeds"] == [{"seeds": "0,1,2", "time": ""}]


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", "null", "nul", "[" * 100_000, '{"config": [], "store": {}}', "\0",
     '{"config": {"variants": [["a"]], "changes": []}, "store": {}}',
     '{"config": {"variants": [], "changes": []}, "store": {"train": 1}}'],
)  # fmt: skip
def test_a_damaged_record_is_one_line(text, tmp_path, capsys):
    (tmp_path / "ablation.json").write_text(text)
    assert cli.main(["ablate", "report", f"--workdir={tmp_path}"]) == 1
    err = capsys.readouterr().err
    assert "not written by `bert-jax ablate run`" in err
    assert err.count("\n") == 1
