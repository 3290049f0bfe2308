"""`continue_domain`, and other configs whose architecture is that of the model to start from."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from corpus import small_config, small_store
from exported import random_params

import bert_jax
from bert_jax import cli
from bert_jax.ablation import spec
from bert_jax.commands.command import parse
from bert_jax.commands.launch_job import parse_command
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.serialization import to_dict
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.publish.export import export, run_export
from bert_jax.publish.model_card import Card
from bert_jax.training.initial_checks import check_architecture
from bert_jax.training.resolve import find_architecture, read_config
from bert_jax.workdir.description import describe

SHORT = (
    "--config.phases[0].steps=2",
    "--config.phases[0].batch_size=8",
    "--config.phases[0].seq_length=32",
    "--config.phases[0].max_predictions=5",
    "--config.evaluation.batches=1",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("initial") / "store")


@pytest.fixture(scope="module")
def source(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export in `exported`, and in `run` what a workdir says of its model, which has few of the
    defaults."""
    folder = tmp_path_factory.mktemp("source")
    changes = {
        "model.hidden_act": "gelu_tanh",
        "model.layer_norm_eps": 1e-5,
        "model.num_attention_heads": 4,
        "model.type_vocab_size": 3,
        "model.pad_vocab_to_multiple_of": 1,
    }
    config = small_config(store).replace(changes)
    tokenizer = Tokenizer.load(store.tokenizer_path)
    export(random_params(config.model), config.model, tokenizer, folder / "exported", card=Card())
    (folder / "run/checkpoints/1").mkdir(parents=True)
    config = config.replace("init", str(folder / "gone"))
    said = describe(config, store, [1], mesh={}, device_kind="cpu")
    (folder / "run/config.json").write_text(json.dumps(said))
    return folder


def words_of(store: TokenStore, init: Path | str, workdir: Path) -> list[str]:
    words = ["--config=continue_domain", f"--config.init={init}", f"--workdir={workdir}"]
    return ["pretrain", *words, f"--config.data.store={store.path}", *SHORT]


def test_a_model_without_a_table_of_positions_has_none_to_repeat() -> None:
    config = load("ettin_17m", {"init": "export", "init_positions": "repeat"})
    with pytest.raises(UserError, match=r"init_positions=repeat has no effect.* position=rotary"):
        check_architecture(config, config.model, 0)


@pytest.mark.parametrize("name", ["exported", "run", "run@1"])
def test_the_architecture_is_that_of_the_model(name: str, source: Path) -> None:
    found = find_architecture(str(source / name))
    assert found
    config = bert_jax.config("continue_domain", {"init": str(source / name)} | short())
    model = config.model
    assert (model.hidden_size, model.num_hidden_layers, model.intermediate_size) == (32, 2, 64)
    assert (model.num_attention_heads, model.max_position_embeddings) == (4, 32)
    assert (model.hidden_act, model.layer_norm_eps, model.type_vocab_size) == ("gelu_tanh", 1e-5, 3)
    assert config.optimizer.learning_rate == 2e-5


def test_every_command_that_starts_a_run_completes_it_alike(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    """Architecture and vocabulary: in the command, under a launcher, in Python, in an ablation."""
    words = words_of(store, source / "exported", tmp_path / "run")
    values, _ = parse("pretrain", cli.COMMANDS["pretrain"], words[1:])
    config = to_dict(read_config(values, values.workdir))
    assert config["model"]["hidden_size"] == 32
    assert config["model"]["vocab_size"] == store.vocab_size
    assert to_dict(parse_command("launch local run", words)[1]) == config
    given = dict(word.removeprefix("--config.").split("=") for word in words if "config." in word)
    changes = {key: int(value) if value.isdecimal() else value for key, value in given.items()}
    assert to_dict(bert_jax.config("continue_domain", changes)) == config
    del changes["data.store"]
    values_of_ablation = {
        "base": "continue_domain", "store": str(store.path), "changes": list(changes.items()),
        "variants": [["token", []], ["span", [["data.masking", "span"]]]], "seeds": "0,1,2",
        "measures": "single/token", "primary": "single/token",
    }  # fmt: skip
    ablation = spec.parse_ablation(values_of_ablation)
    run, *_ = spec.runs(ablation)
    assert to_dict(run.config) == config
    command, *of_run = spec.words(ablation, run, str(tmp_path / "run"))
    values, _ = parse(command, cli.COMMANDS[command], of_run)
    assert to_dict(read_config(values)) == config


def short() -> dict[str, int]:
    return {"phases[0].seq_length": 32, "phases[0].max_predictions": 5}


def test_a_given_value_is_kept(source: Path) -> None:
    given = short() | {"init": str(source / "exported"), "model.max_position_embeddings": 64}
    model = bert_jax.config("continue_domain", given).model
    assert (model.hidden_size, model.max_position_embeddings) == (32, 64)


@pytest.mark.parametrize("init", ["absent", "", "/absent@7"])
def test_without_a_model_the_architecture_is_the_default(init: str, tmp_path: Path) -> None:
    config = bert_jax.config("continue_domain", {"init": init} if init != "absent" else {})
    assert config.model == ModelConfig()
    assert load("continue_domain").init == "model"


def test_a_config_file_can_start_from_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from bert_jax.configs import continue_domain\n\n\ndef get_config():\n"
        "    config = continue_domain.get_config()\n    config.model.num_hidden_layers = 1\n"
        f"    config.init = {str(source / 'run')!r}\n    config.phases[0].seq_length = 32\n"
        "    config.phases[0].max_predictions = 5\n    return config\n"
    )
    model = bert_jax.config(tmp_path / "mine.py").model
    assert (model.num_hidden_layers, model.hidden_size) == (1, 32)


@pytest.mark.slow
def test_a_model_is_continued_resumed_and_exported(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(source / "exported", tmp_path / "model")
    words = words_of(store, tmp_path / "model", tmp_path / "run")
    assert cli.main(words) == DONE
    assert f"starts from {tmp_path / 'model'}\n" in capsys.readouterr().out
    recorded = json.loads((tmp_path / "run/config.json").read_text())["config"]
    assert recorded["model"]["hidden_size"] == 32
    assert recorded["model"]["vocab_size"] == 100
    shutil.rmtree(tmp_path / "model")  # the run has its settings and parameters
    assert cli.main(words) == DONE
    (tmp_path / "model").mkdir()
    (tmp_path / "model/modules.json").write_text("[]")  # as of a sentence encoder
    run_export(tmp_path / "run", tmp_path / "out")
    said = capsys.readouterr().out
    assert f"not carried over: what makes a sentence encoder of {tmp_path / 'model'} (pool" in said
    assert json.loads((tmp_path / "out/config.json").read_text())["num_attention_heads"] == 4
    other = words_of(store, tmp_path / "run", tmp_path / "run")
    assert cli.main(other) == FAILED
    assert "run: is the input, which it would replace" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["org/bert", "bert-base-uncased"])
def test_a_name_of_the_hub_is_answered_with_the_one_that_works(
    name: str,
    store: TokenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words_of(store, Path(name), tmp_path / "run")) == FAILED
    said = capsys.readouterr().err
    assert f"error: config.init={name}: " in said
    assert said.count(f"did you mean hf:{name}, a model on") == said.count("\n") == 1
    assert cli.main(words_of(store, Path("old_run"), tmp_path / "run")) == FAILED
    assert "did you mean" not in capsys.readouterr().err  # as likely a misspelled folder


def test_a_model_that_is_absent_is_one_line(
    store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(words_of(store, tmp_path / "absent", tmp_path / "run")) == FAILED
    said = capsys.readouterr().err
    assert f"error: config.init={tmp_path / 'absent'}: no such folder" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "message"),
    [("{}", "config.json: no vocab_size"), ('{"model_type": "gpt2"}', "model_type='gpt2'")],
)
def test_a_wrong_model_is_one_line(
    file: str, message: str, store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(file)
    assert cli.main(words_of(store, tmp_path / "model", tmp_path / "run")) == FAILED
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_run_of_another_model_takes_the_named_one(source: Path, tmp_path: Path) -> None:
    """The settings that a workdir recorded count only for the model that it started from."""
    recorded = find_architecture(str(source / "gone"), source / "run")
    assert recorded == find_architecture(str(source / "run"))
    assert find_architecture(str(source / "gone")) is None
    assert find_architecture(str(tmp_path), source / "run") is None


def test_rows_longer_than_the_positions_are_one_line(source: Path) -> None:
    with pytest.raises(UserError, match=r"seq_length=128 exceeds config\.model\.max_position"):
        bert_jax.config("continue_domain", {"init": str(source / "run")})


@pytest.mark.parametrize("name", ["continue_domain", "tiny", "base"])
def test_a_replaced_model_brings_what_it_would_bring_at_once(name: str, source: Path) -> None:
    changes = short() | {"init": str(source / "exported"), "model.layer_norm_eps": 1e-7}
    at_once = bert_jax.config(name, changes)
    assert bert_jax.config(name).replace(changes) == at_once
    later = bert_jax.config(name).replace("seed", 0).replace("model.layer_norm_eps", 1e-7)
    # Values that are given, before or together with the model, are kept.
    assert later.replace(short() | {"init": source / "exported"}) == at_once
    assert (at_once.model.hidden_size == 32) == (name == "continue_domain")


def test_another_model_brings_its_own(source: Path, store: TokenStore, tmp_path: Path) -> None:
    model = small_config(store).replace("model.num_hidden_layers", 1).model
    tokenizer = Tokenizer.load(store.tokenizer_path)
    export(random_params(model), model, tokenizer, tmp_path / "other", card=Card())
    config = bert_jax.config("continue_domain", short() | {"init": str(source / "exported")})
    other = config.replace("init", tmp_path / "other")
    assert other == bert_jax.config("continue_domain", short() | {"init": f"{tmp_path}/other"})
    assert (config.model.num_hidden_layers, other.model.num_hidden_layers) == (2, 1)
    assert other.replace("init", "absent").model == other.model  # which the run reports
    assert pickle.loads(pickle.dumps(other)).replace("init", source / "exported") == config


def test_other_configs_do_not_follow_the_model(source: Path) -> None:
    config = bert_jax.config("tiny", {"init": str(source / "run")})
    assert isinstance(config, Config)
    assert config.model.hidden_size == 128
