"""`--config=` with a YAML or JSON file, or a run's config.json: values, never executed."""

import json
from pathlib import Path

import pytest
from corpus import small_store
from runs import read_records
from tiny_words import TINY

from bert_jax import cli
from bert_jax.config.config_files import define_config, read_config, with_paths
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict
from bert_jax.exit_codes import DONE, FAILED


def read(*words: str) -> Config:
    from absl import flags

    values, words = flags.FlagValues(), with_paths(words)
    define_config(values, words)
    values(["pretrain", *words])
    return read_config(values)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "optimizer: {learning_rate: 5e-4}\nphases:\n- steps: 7\n- {steps: 8}\n"),
        ("a.yml", "optimizer:\n  learning_rate: 0.0005\nphases: [{steps: 7}, {steps: 8}]\n"),
        (
            "a.json",
            '{"optimizer": {"learning_rate": 5e-4}, "phases": [{"steps": 7}, {"steps": 8}]}',
        ),
    ],
)
def test_values_replace_the_defaults(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    expected = {"optimizer": {"learning_rate": 5e-4}, "phases": [{"steps": 7}, {"steps": 8}]}
    assert read(f"--config={path}") == from_dict(expected, Config)
    changed = read(f"--config={path}", "--config.phases[1].steps=9", "--config.seed=3")
    assert (changed.phases[1].steps, changed.seed) == (9, 3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "optimizer:\n  lr: 1\n", "config.optimizer.lr; did you mean optimizer.learning"),
        ("a.yaml", "modle: {}\n", "unknown key config.modle; did you mean model?"),
        ("a.yaml", "1: 2\nx: 3\n", "unknown key config.1; valid: checkpoint, "),
        ("a.yaml", "phases:\n- batch_size: many\n", "config.phases[0].batch_size='many' should be"),
        ("a.yaml", "- 1\n- 2\n", "must hold keys with values, such as "),
        ("a.yaml", "", "must hold keys with values, such as "),
        ("a.yml", "a: [\n", "a.yml: not YAML (while parsing"),
        ("a.yaml", "[" * 10_000, "a.yaml: not YAML ("),
        ("a.json", '{"seed": ', "a.json: not JSON (Expecting value"),
        ("a.json", '{"seed": "x"}', "config.seed='x' should be int"),
        ("a.json", "\ud800", "a.json: not JSON ("),
        ("a.toml", "seed = 1", "a config file must be .py, .yaml, .yml or .json"),
    ],
)
def test_a_wrong_file_of_values_is_one_line(
    name: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert cli.main(["pretrain", f"--config={path}", f"--workdir={tmp_path}/run"]) == FAILED
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {path}: ")
    assert message in printed
    assert printed.count("\n") == 1


def test_nothing_in_a_file_of_values_is_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path, made = tmp_path / "a.yaml", tmp_path / "made"
    path.write_text(f"seed: !!python/object/apply:pathlib.Path.touch [{made}]\n")
    assert cli.main(["pretrain", f"--config={path}", f"--workdir={tmp_path}/run"]) == FAILED
    assert "could not determine a constructor" in capsys.readouterr().err
    assert not made.exists()


@pytest.mark.slow
def test_the_config_json_of_a_run_repeats_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    first, second = tmp_path / "first", tmp_path / "second"
    words = ["--config.log_every_steps=1", f"--config.data.store={store.path}"]
    assert cli.main(["pretrain", *TINY, *words, f"--workdir={first}"]) == DONE
    recorded = first / "config.json"
    assert cli.main(["pretrain", f"--config={recorded}", f"--workdir={second}"]) == DONE
    described = [json.loads((folder / "config.json").read_text()) for folder in (first, second)]
    assert described[0]["config"] == described[1]["config"]
    losses = [[r["loss"] for r in read_records(folder, "train")] for folder in (first, second)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
