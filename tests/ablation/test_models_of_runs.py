"""The models that the runs of an ablation read: found from any folder, counted, and the same."""

import dataclasses
from pathlib import Path
from typing import Any

import ablated
import pytest
from corpus import small_store
from made_runs import MadeRuns
from small_task import write_task

from bert_jax.ablation import budget, record, sentences, spec
from bert_jax.ablation.layout import AblationDir
from bert_jax.aot import lower
from bert_jax.config.config_files import execute
from bert_jax.config.schema import ModelConfig
from bert_jax.config.serialization import plain, to_dict
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.metrics.flops import step_flops
from bert_jax.training.teacher import for_evaluation

WIDE = ModelConfig(hidden_size=96, num_attention_heads=2, num_hidden_layers=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def wide_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "find_architecture", lambda _: WIDE)


def values_of(folder: Path, store: TokenStore, **options: Any) -> dict[str, Any]:
    values: dict[str, Any] = plain(execute(ablated.write(folder, **options)))
    return values | {"store": str(store.path)}


def test_a_report_in_another_folder_plans_the_same_runs(tmp_path, store, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    shape = ModelConfig(hidden_size=48, num_attention_heads=3)
    known = {str(here / "model"): shape, str(here / "other"): shape}
    monkeypatch.setattr(spec, "find_architecture", known.get)
    monkeypatch.chdir(here)
    own = {"teacher": "run@4", "init": "other", "data.store": str(store.path)}
    options = {"variants": {"token": {}, "taught": own, "hub": {"teacher": "hf:a/b@c"}}}
    tasks = {"pairs": {"task.data": "task", "task.teacher": "run@2"}}
    values = values_of(tmp_path, store, init="model", **options) | {"base": "continue_domain"}
    values["changes"] = [each for each in values["changes"] if "model." not in each[0]]
    values["tasks"] = [[name, list(task.items())] for name, task in tasks.items()]
    monkeypatch.setattr(spec.tasks, "check", lambda *_: None)
    planned = spec.parse_ablation(values)
    monkeypatch.chdir(there)
    later = spec.parse_ablation(to_dict(planned.values), planned.base)
    assert [to_dict(run.config) for run in spec.runs(later)] == [
        to_dict(run.config) for run in spec.runs(planned)
    ]
    first, taught, hub = (variant.config for variant in later.variants)
    assert (first.init, first.model.hidden_size) == (str(here / "model"), 48)
    assert (taught.init, taught.teacher) == (str(here / "other"), str(here / "run@4"))
    assert hub.teacher == "hf:a/b@c"
    settings = spec.tasks.settings_of(later.values, "task/pairs")
    assert settings["task.data"] == str(here / "task")
    assert settings["task.teacher"] == str(here / "run@2")
    known.clear()  # the models are gone
    line = rf"'token': config.init={here}/model: no such folder; give that of a run, an import"
    with pytest.raises(UserError, match=line):
        spec.parse_ablation(to_dict(planned.values), planned.base)
    (here / "model").mkdir()
    with pytest.raises(UserError, match=rf"config.init={here}/model: has no config.json; give the"):
        spec.parse_ablation(to_dict(planned.values), planned.base)


def test_a_model_that_the_base_names_is_that_of_the_folder_where_the_runs_are_made(
    tmp_path, store, monkeypatch
):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    file = tmp_path / "own.py"
    file.write_text(
        "from bert_jax.configs import tiny\ndef get_config():\n  config = tiny.get_config()\n"
        "  config.init = 'model'\n  return config\n"
    )
    workdir = AblationDir.open(tmp_path / "A")
    monkeypatch.chdir(tmp_path / "here")
    values = values_of(tmp_path, store) | {"base": str(file)}
    ablation = spec.parse_ablation(values)
    (run, *_) = spec.runs(ablation)
    assert run.config.init == str(tmp_path / "here" / "model")
    assert f"--config.init={run.config.init}" in spec.words(ablation, run, "A/x")
    record.claim(workdir, ablation)
    old = record.read_record(workdir)  # as an earlier version wrote it
    record._write(workdir.record, {**old, "base": {**old["base"], "init": "model"}})
    record.claim(workdir, ablation)
    monkeypatch.chdir(tmp_path / "there")
    with pytest.raises(
        UserError, match=r"own.py: the base of the ablation in .* has init='.*/here"
    ):
        record.claim(workdir, spec.parse_ablation(values))


@pytest.mark.usefixtures("wide_teacher")
def test_equal_flops_count_the_teacher(tmp_path, store):
    variants = {"plain": {}, "taught": {"teacher": "/t@4"}}
    options = {"variants": variants, "equal": "flops", "phases[0]__steps": 600}
    ablation = spec.parse_ablation(values_of(tmp_path, store, **options))
    made, spent = budget.equalize_budgets(ablation, {str(store.path): store})
    config = made.variants[1].config
    student = dataclasses.replace(config.model, teacher_width=96)
    teacher = for_evaluation(WIDE, config.model)
    each = step_flops(config.with_model(student), config.phases[0], teacher)
    assert spent["taught"].flops == pytest.approx(config.total_steps * each)
    assert abs(spent["taught"].flops - spent["plain"].flops) <= each / 2
    assert config.total_steps < 300


def test_a_teacher_that_is_not_there_and_settings_of_none_are_one_line(tmp_path, store):
    variants = {"plain": {}, "taught": {"teacher": str(tmp_path / "none")}}
    ablation = spec.parse_ablation(values_of(tmp_path, store, variants=variants))
    with pytest.raises(UserError, match=f"config.teacher={tmp_path}/none: no such folder; give"):
        budget.equalize_budgets(ablation, {str(store.path): store})
    for key, line in (
        ("model.teacher_width", "teacher_width=64: follows from config.teacher; leave it out"),
        ("distillation.temperature", "temperature needs a model; set config.teacher"),
    ):
        values = values_of(tmp_path, store, variants={"a": {}, "b": {key: 64}})
        with pytest.raises(
            UserError, match=f"config.variants, 'b': config.{key.split('.')[0]}.{line}"
        ):
            spec.parse_ablation(values)


def set_data(made: MadeRuns, run: str, key: str, value: Any) -> None:
    made.change_config(run, lambda known: known["data"].update({key: value}))


@pytest.mark.usefixtures("wide_teacher")
def test_runs_with_one_teacher_have_verdicts_and_a_teacher_that_changed_is_named(
    tmp_path, store, monkeypatch
):
    made = MadeRuns(tmp_path, store, monkeypatch, teacher="/t@4")
    for run in made.runs:
        set_data(made, run.name, "teacher", "ab" * 32)
        moved = {"teacher": "/moved@4"}
        made.change_config(run.name, lambda known, moved=moved: known["config"].update(moved))
        made.change_config(
            run.name, lambda known: known["config"]["model"].update(teacher_width=96)
        )
    assert made.results().unplanned == {}
    set_data(made, "span/1", "teacher", "cd" * 32)
    found = made.results()
    assert set(found.unplanned) == {run.name for run in made.runs}
    line = "config.teacher=/t@4 was another model for other runs"
    assert all(line in said for said in found.excluded.values())


def test_a_task_s_teacher_that_changed_is_named(tmp_path, store, monkeypatch):
    settings = {"task.name": "rte", "task.data": str(write_task(tmp_path / "task")),
                "task.teacher": "/t", "phases[0].seq_length": 32}  # fmt: skip
    options = {"tasks": {"pairs": settings}, "measures": ("single/token", "task/pairs")}
    made = MadeRuns(tmp_path, store, monkeypatch, **options)
    for run in made.runs:
        set_data(made, f"{run.name}/tasks/pairs", "teacher", "ab" * 32)
    assert made.results().unplanned == {}
    set_data(made, "span/1/tasks/pairs", "teacher", "cd" * 32)
    line = "task/pairs: config.task.teacher=/t was another model for other runs"
    assert line in made.results().excluded["span/1"]


def test_a_model_whose_optimizer_some_runs_take_is_one_model(tmp_path, store, monkeypatch):
    variants = {"reset": {}, "carry": {"init_optimizer": "carry"}}
    made = MadeRuns(tmp_path, store, monkeypatch, variants=variants, init="/m@4")
    for run in made.runs:
        set_data(made, run.name, "init", run.variant)  # with the moments another digest
    assert made.results().unplanned == {}
    set_data(made, "carry/1", "init", "cd" * 32)
    found = made.results()
    assert set(found.unplanned) == {"carry/0", "carry/1", "carry/2"}
    assert "config.init=/m@4 was another model for other runs" in found.excluded["carry/1"]


def test_a_run_that_begins_at_the_step_of_its_model_spends_the_rest(tmp_path, store, monkeypatch):
    """With whole records, so that it is said what differs and not that it is unknown."""
    variants = {"reset": {}, "carry": {"init_optimizer": "carry"}}
    made = MadeRuns(tmp_path, store, monkeypatch, variants=variants, init="/m@24")
    for run in made.runs:
        set_data(made, run.name, "init", run.variant)
        if run.variant == "carry":
            set_data(made, run.name, "init_step", 24)
            path = made.path(run.name) / "metrics.jsonl"
            path.write_text("".join(path.read_text().splitlines(keepends=True)[2:]))  # from 30 on
    found = made.results()
    whole, rest = (found.measured[f"{name}/0"].spent for name in ("reset", "carry"))
    assert all(each.is_recorded for each in found.measured.values())
    assert (whole.steps, rest.steps) == (60, 36)
    for key in ("real_tokens", "positions", "flops"):
        assert getattr(rest, key) == pytest.approx(0.6 * getattr(whole, key))
    (line,) = sentences.verdicts(found)
    assert "not attributable to the setting alone: updates and real tokens" in line
    options = {"variants": variants, "init": "/m@24", "equal": "real_tokens"}
    with pytest.raises(UserError, match=r"config\.equal=real_tokens: 'carry' begins at the step"):
        spec.parse_ablation(values_of(tmp_path, store, **options))
