"""Ablation files: what is checked before anything runs, and what each run spends."""

import re
import shlex
from pathlib import Path
from typing import Any

import ablated
import numpy as np
import pytest
from corpus import small_store
from full_disk import fill_disk

from bert_jax import cli
from bert_jax.ablation import budget, record, spec, state
from bert_jax.ablation.layout import AblationDir
from bert_jax.checkpoint import catalog
from bert_jax.commands import ablate, finetune, pretrain
from bert_jax.commands.command import parse
from bert_jax.config import ablation as config_ablation
from bert_jax.config.config_files import execute, load, read_config
from bert_jax.config.serialization import plain, to_dict
from bert_jax.config.shipped import shipped, shipped_ablations
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.training import per_example
from bert_jax.training.per_example import PerExample


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def values_of(path: Path, store: TokenStore) -> dict[str, Any]:
    values: dict[str, Any] = plain(execute(path))
    return values | {"store": str(store.path)}


def made(folder: Path, store: TokenStore, **options: Any) -> spec.Ablation:
    return spec.parse_ablation(values_of(ablated.write(folder, **options), store))


def test_runs_are_those_of_each_seed_with_the_commands_that_make_them(tmp_path, store):
    ablation, _ = budget.equalize_budgets(made(tmp_path, store), {str(store.path): store})
    runs = spec.runs(ablation)
    assert [run.name for run in runs] == ["token/0", "span/0", "token/1", "span/1", "token/2",
                                          "span/2"]  # fmt: skip
    assert str(AblationDir.open("A/").run(runs[1])).endswith("/A/runs/span/0")
    for run in runs:
        name, *words = spec.words(ablation, run, "A/x")
        flags, _ = parse(name, pretrain.COMMANDS[name], words)
        assert to_dict(read_config(flags)) == to_dict(run.config), run.name
        assert flags.workdir == "A/x"
    shared = load("tiny", {**ablated.CHANGES, "data.store": str(store.path), "seed": 0})
    assert to_dict(runs[0].config) == to_dict(shared)


def test_runs_start_from_a_commit_of_the_hub_since_a_branch_may_move(tmp_path, store):
    workdir = AblationDir.open(tmp_path / "A")
    for key in ("init", "teacher"):
        ablation = made(tmp_path, store, **{key: "hf:org/bert@main"})
        with pytest.raises(UserError, match=f"config.{key}=hf:org/bert@main: .*bert@COMMIT$"):
            record.claim(workdir, ablation)
    record.claim(workdir, made(tmp_path, store, init=f"hf:org/bert@{'0' * 40}"))


def test_every_run_is_in_one_shard(tmp_path, store):
    runs = spec.runs(made(tmp_path, store))
    parts = [spec.shard_of(runs, f"{part}/4") for part in (1, 2, 3, 4)]
    assert sorted(run.name for part in parts for run in part) == sorted(run.name for run in runs)
    for text in ("17/16", "0/4", "3", "a/b"):
        with pytest.raises(UserError, match=f"--shard={text}: give I/N for part I of N"):
            spec.shard_of(runs, text)


@pytest.mark.parametrize("equal", ["steps", "real_tokens", "flops"])
def test_variants_spend_alike_and_warmups_are_shares_of_the_steps(equal, tmp_path, store):
    variants = {
        "rows of 8": {},
        "rows of 4": {"phases[0].batch_size": 4},
        "packed": {"phases[0].examples_per_row": 4},
        "two layers": {"model.num_hidden_layers": 2},
        "stable rate": {"optimizer.schedule": "wsd", "phases[0].batch_size": 32},
    }
    changes = {"phases[0]__steps": 120, "optimizer__warmup_steps": 30}
    ablation = made(tmp_path, store, variants=variants, equal=equal, **changes)
    ablation, spent = budget.equalize_budgets(ablation, {str(store.path): store})
    reference = spent["rows of 8"]
    for variant in ablation.variants:
        own, config = spent[variant.name], variant.config
        unit = getattr(own, equal) / own.steps
        assert abs(getattr(own, equal) - getattr(reference, equal)) <= unit / 2 + 1e-6
        assert config.total_steps == own.steps
        assert config.optimizer.warmup_steps == round(30 * own.steps / 120)
    steps = {name: each.steps for name, each in spent.items()}
    assert steps["rows of 8"] == 120
    if equal == "steps":
        assert set(steps.values()) == {120}
    else:
        assert steps["rows of 4"] == 240
    if equal == "real_tokens":
        assert steps["packed"] < 120
        assert steps["two layers"] == 120
    if equal == "flops":
        assert steps["two layers"] < 120 == steps["packed"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"variants": {"one": {}}}, "config.variants: 1 given; an ablation has a reference and"),
        ({"seeds": (0, 1, 0)}, "config.seeds='0,1,0': 0 is given twice"),
        ({"seeds": (0, -1)}, "config.seeds: seed=-1 should be from 0 to 4294967295"),
        ({"seeds": (0, 5_000_000_000)}, "config.seeds: seed=5000000000 should be from 0 to"),
        (
            {"variants": {"a": {}, "b": {"data.maskin": "span"}}},
            "unknown key config.data.maskin; did you mean data.masking?",
        ),
        (
            {"variants": {"a": {}, "b": {"data.masking": "spam"}}},
            "'b': config.data.masking='spam'; did you mean span?",
        ),
        (
            {"variants": {"a": {}, "b": {"data.masking": "token"}}},
            "are the same configuration; remove one, or set config.null=True",
        ),
        (
            {"variants": {"a": {}, "b": {"seed": 7}}},
            "config.variants, 'b': seed is the same for all variants",
        ),
        ({"variants": {"a/b": {}, "b": {}}}, "'a/b': give a name that a folder can have"),
        (
            {"measures": ("single/spam", "single/token")},
            "'spam' does not exist; did you mean span?",
        ),
        (
            {"measures": ("single/span",)},
            "'single/token' is not a measure; did you mean single/span?",
        ),
        (
            {"measures": ("single/token", "nsp/token")},
            "nsp/token cannot be measured for token, span (pairing=nsp",
        ),
        (
            {
                "measures": ("single/token", "nsp/token"),
                "variants": {"single": {}, "nsp": {"data.pairing": "nsp"}},
            },
            "config.measures: nsp/token cannot be measured for single (",
        ),
        (
            {"measures": ("single/token", "single/span:64")},
            "single/span:64 cannot be measured for token, span (",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_line_before_anything_runs(
    options, line, tmp_path, store, capsys
):
    file = ablated.write(tmp_path, **options)
    assert cli.main(ablated.words(file, store, tmp_path / "A")) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert line in err
    assert not (tmp_path / "A").exists()


def test_other_bad_input_is_one_line(tmp_path, store, capsys):
    file = ablated.write(tmp_path)
    words = ablated.words(file, store, tmp_path / "A", "--plan")
    of_task = tmp_path / "my_task.py"
    of_task.write_text(
        "from bert_jax.configs import base\ndef get_config():\n  config = base.get_config()\n"
        "  config.task.name = 'rte'\n  return config\n"
    )
    cases = {
        (*words, "--shard=17/16"): "--shard=17/16: give I/N for part I of N, from 1/N to N/N",
        (*words, "--config.store="): "config.store is empty",
        (*words, "--config.equal=step"): "did you mean steps?",
        ("ablate", "run", f"--config={of_task}", "--workdir=A"): f"finetune --config={of_task}\n",
        ("pretrain", f"--config={file}", "--workdir=A"): "an ablation, which has several",
        ("ablate", "report", f"--workdir={tmp_path}"): "no ablation.json there",
    }
    for typed, line in cases.items():
        assert cli.main(list(typed)) == 1, typed
        err = capsys.readouterr().err
        assert line in err, typed
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("pretrain --config=ablations/nsp", "ablate run --config=ablations/nsp"),
        ("finetune --config ablations/nsp", "ablate run --config=ablations/nsp"),
        ("ablate run --config=demo", "pretrain --config=demo"),
    ],
)
@pytest.mark.parametrize("more", ["", "--config.store=s", "--config.data.store=s"])
def test_a_file_of_the_other_kind_comes_with_its_command(tmp_path, capsys, typed, line, more):
    """Not with the nearest key of the wrong kind. What the message says to type is taken."""
    words = [*typed.split(), *more.split(), f"--workdir={tmp_path / 'A'}"]
    assert cli.main(words) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith(f": bert-jax {line}\n")
    verb, config = line.rsplit(" ", 1)
    parse(verb, {**ablate.COMMANDS, **pretrain.COMMANDS, **finetune.COMMANDS}[verb], [config])


def test_the_line_of_a_command_has_the_flags_that_were_given(tmp_path, store):
    words = ablated.words(ablated.write(tmp_path), store, tmp_path / "A B", "--config.seeds=0,1")
    values, _ = parse("ablate run", ablate.COMMANDS["ablate run"], words[2:])
    name, *line = shlex.split(ablate.typed(values))[-len(words) :]
    assert name == "ablate"
    assert sorted(line) == sorted(words[1:])
    shipped = ["--config=ablations/nsp", "--workdir=A"]
    values, _ = parse("ablate run", ablate.COMMANDS["ablate run"], shipped)
    assert sorted(shlex.split(ablate.typed(values))[-2:]) == shipped
    modules = [f"--module={tmp_path / name}" for name in ("a.py", "b.py")]
    for module in ("a.py", "b.py"):
        (tmp_path / module).write_text("")
    values, _ = parse("ablate run", ablate.COMMANDS["ablate run"], [*shipped, *modules])
    assert sorted(shlex.split(ablate.typed(values))[-4:]) == sorted([*shipped, *modules])


def test_a_report_before_the_first_run_has_ended_is_one_line(tmp_path, store, capsys):
    record.claim(AblationDir.open(tmp_path / "A"), made(tmp_path, store))
    assert cli.main(["ablate", "report", f"--workdir={tmp_path / 'A'}"]) == 1
    assert "no run has ended and been measured yet" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "A").iterdir()] == ["ablation.json"]


def test_a_variant_may_be_compared_with_itself_if_that_is_meant(tmp_path, store):
    values = values_of(ablated.write(tmp_path, variants={"a": {}, "b": {}}), store)
    assert [v.name for v in spec.parse_ablation(values | {"null": True}).variants] == ["a", "b"]


def test_a_workdir_is_of_one_ablation_to_which_seeds_may_be_added(tmp_path, store):
    workdir = AblationDir.open(tmp_path / "A")
    record.claim(workdir, made(tmp_path, store))
    record.claim(workdir, made(tmp_path, store))
    record.claim(workdir, made(tmp_path, store, seeds=(0, 1, 2, 3)))
    assert record.values_of(record.read_record(workdir)).seeds == "0,1,2,3"
    with pytest.raises(UserError, match=r"has config\.seeds='0,1,2,3', not '0,1'"):
        record.claim(workdir, made(tmp_path, store, seeds=(0, 1)))
    other = {"token": {}, "span": {"data.masking": "ngram"}}
    with pytest.raises(UserError, match=r"config\.variants\.span\.data\.masking='span', not 'ngr"):
        record.claim(workdir, made(tmp_path, store, seeds=(0, 1, 2, 3), variants=other))
    turned = dict(reversed(ablated.VARIANTS.items()))
    with pytest.raises(UserError, match=r"config\.variants='token, span', not 'span, token'"):
        record.claim(workdir, made(tmp_path, store, seeds=(0, 1, 2, 3), variants=turned))
    with pytest.raises(UserError, match=r"config\.changes\.log_every_steps=10, not 20"):
        record.claim(workdir, made(tmp_path, store, seeds=(0, 1, 2, 3), log_every_steps=20))
    replaced = small_store(tmp_path / "other", documents=50)
    with pytest.raises(UserError, match=r"not the store of the ablation .*train differs"):
        record.claim(workdir, made(tmp_path, replaced, seeds=(0, 1, 2, 3)))
    (tmp_path / "A" / "ablation.json").write_text("{}")
    with pytest.raises(UserError, match="not written by `bert-jax ablate run`"):
        record.claim(workdir, made(tmp_path, store))


def test_what_a_verdict_depends_on_cannot_be_added_to_an_ablation(tmp_path, store):
    """Results may be known: a consequence excuses a confound, and the first seed decides steps."""
    workdir = AblationDir.open(tmp_path / "A")
    variants = {"token": {}, "span": {"data.masking": "span"}, "word": {"data.masking": "ngram"}}
    values = values_of(ablated.write(tmp_path, variants=variants), store)
    record.claim(workdir, spec.parse_ablation(values))
    for key, value in (("consequences", ["steps"]), ("against", [["word", "span"]])):
        with pytest.raises(UserError, match=rf"has config\.{key}.*give another --workdir"):
            record.claim(workdir, spec.parse_ablation(values | {key: value}))
    with pytest.raises(UserError, match="the first seed of the ablation there is 0, not 5: the"):
        record.claim(workdir, spec.parse_ablation(values | {"seeds": "5,0,1,2"}))
    record.claim(workdir, spec.parse_ablation(values | {"seeds": "0,5,1,2"}))


@pytest.mark.parametrize("place", ["write", "rename"])
def test_a_full_disk_is_one_line(place, tmp_path, store, capsys, monkeypatch):
    file = ablated.write(tmp_path)
    with monkeypatch.context() as patched:
        failures = fill_disk(patched, tmp_path / "A", place)
        assert cli.main(ablated.words(file, store, tmp_path / "A")) == 1
    assert failures
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "ablation.json: cannot be written (No space left on device)" in err


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"seeds": 2}, "ablation, seeds=2: give a tuple of seeds, such as (0, 1, 2)"),
        ({"seeds": "0,1"}, "ablation, seeds='0,1': give a tuple of seeds"),
        ({"measures": "single/token"}, "ablation, measures='single/token': give a tuple of names"),
        ({"measures": None}, "ablation, measures=None: give a tuple of names"),
        ({"variants": ("a", "b")}, "ablation, variants=('a', 'b'): give a dict of variants by"),
        ({"variants": {"a": None}}, "ablation, variants['a']=None: give a dict of changes"),
        ({"tasks": ["rte"]}, "ablation, tasks=['rte']: give a dict of tasks by name"),
        ({"tasks": {"rte": 3}}, "ablation, tasks['rte']=3: give a dict of changes"),
        ({"changes": 5}, "ablation, changes=5: give a dict of values by key"),
        ({"against": "a"}, "ablation, against='a': give a dict of variants"),
        ({"published": "x"}, "ablation, published='x': give a dict of tables by title"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_to_give(values, line):
    with pytest.raises(UserError, match=f"^{re.escape(line)}"):
        config_ablation.ablation(**{"variants": {"a": {}, "b": {}}, **values})


def test_help_lists_what_the_command_takes(capsys):
    for command, own, other in (
        ("ablate run", shipped_ablations(), shipped()),
        ("pretrain", shipped(), shipped_ablations()),
    ):
        assert cli.main([*command.split(), "--help"]) == 0
        (listed,) = re.findall(r"a shipped \w+ \((.*?)\) or the path", capsys.readouterr().out)
        assert listed.split(", ") == list(own)
        assert not set(listed.split(", ")) & set(other)


def test_values_of_a_run_that_was_deleted_are_not_those_of_the_next(tmp_path, store, monkeypatch):
    """A run in a folder that was deleted has another id; it is measured again."""
    ablation = made(tmp_path, store)
    run, forms = spec.runs(ablation)[0], {name: ablation.form(name) for name in ablation.measures}
    some = PerExample(np.zeros(1, int), np.zeros(1, np.uint16), {"mlm": {"loss": np.ones(1)}})
    values = dict.fromkeys(("own", *forms.values()), some)
    about = {
        "run_id": "first", "step": 60, "held_out": "", "sources": [], "seconds": 1.0,
        "forms": {name: {"settings": {}, "metrics": {}} for name in values},
    }  # fmt: skip
    path = AblationDir.open(tmp_path).values(run)
    path.parent.mkdir(parents=True)
    per_example.write(path, values, about)
    monkeypatch.setattr(catalog, "complete_steps", lambda _: [40, 60])
    for run_id, found in {"first": "measured", "second": "trained"}.items():
        monkeypatch.setattr(catalog, "read_meta", lambda *_, run_id=run_id: {"run_id": run_id})
        assert state.state_of(AblationDir.open(tmp_path), run, forms).state == found
    monkeypatch.setattr(catalog, "complete_steps", lambda _: [])
    assert state.state_of(AblationDir.open(tmp_path), run, forms).state == "waiting"


@pytest.mark.parametrize("name", shipped_ablations())
def test_a_shipped_ablation_is_one_and_says_how_to_run_it(name, store):
    path = shipped_ablations()[name]
    ablation = spec.parse_ablation(values_of(path, store))
    text = path.read_text(encoding="utf-8").split('"""')[1]
    assert f"bert-jax ablate run --config={name} " in text
    figures = {
        cell for _, rows in ablation.values.published for row in rows[1:] for cell in row[1:]
    }
    assert figures <= set(re.findall(r"[\d./]+", text)), "the docstring and the page differ"
