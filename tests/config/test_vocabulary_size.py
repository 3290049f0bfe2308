"""A run's vocabulary size is that of its store, unless the config gives one."""

import json
from pathlib import Path

import pytest
from corpus import small_store
from test_values_file import read
from tiny_words import TINY

from bert_jax import cli
from bert_jax.config.config_files import load
from bert_jax.config.shipped import shipped
from bert_jax.config.vocabulary import vocab_size
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED

WORDS = [word for word in TINY if "vocab_size" not in word]
# Of a task, whose vocabulary is that of the model it starts from, the default.
GIVEN = {"spanbert_base": 28996, "sentences": 30522}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """100 entries."""
    folder = tmp_path_factory.mktemp("vocabulary") / "store"
    return f"--config.data.store={small_store(folder).path}"


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_config_follows_the_store(name: str, store: str) -> None:
    size = GIVEN.get(name, 30522)
    assert load(name).model.vocab_size == size
    assert read(f"--config={name}").model.vocab_size == size
    assert read(f"--config={name}", store).model.vocab_size == GIVEN.get(name, 100)
    given = read(f"--config={name}", "--config.model.vocab_size=77", store)
    assert given.model.vocab_size == 77


@pytest.mark.parametrize(("text", "size"), [("seed: 1", 100), ("model: {vocab_size: 7}", 7)])
def test_a_file_of_values_follows_the_store(
    text: str, size: int, store: str, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert read(f"--config={tmp_path / 'a.yaml'}", store).model.vocab_size == size
    alone = read(f"--config={tmp_path / 'a.yaml'}").model.vocab_size
    assert alone == (30522 if size == 100 else size)


def test_a_replaced_store_brings_its_size(store: str) -> None:
    path = store.partition("=")[2]
    config = load("base")
    followed = config.replace("data.store", path)
    assert (config.model.vocab_size, followed.model.vocab_size) == (30522, 100)
    assert followed.replace("data.store", path).model.vocab_size == 100
    assert followed.replace("data.store", "absent").model.vocab_size == 100
    given = config.replace({"data.store": path, "model.vocab_size": 30522})
    assert given.model.vocab_size == 30522
    assert config.replace("model.vocab_size", 77).replace("data.store", path).model.vocab_size == 77


@pytest.mark.slow
def test_a_run_records_the_size_and_resumes_with_it(store: str, tmp_path: Path) -> None:
    words = ["pretrain", *WORDS, store, f"--workdir={tmp_path}"]
    assert cli.main([*words, "--config.model.vocab_size=100"]) == DONE
    assert cli.main(words) == DONE
    recorded = json.loads((tmp_path / "config.json").read_text())["config"]
    assert recorded["model"]["vocab_size"] == 100


@pytest.mark.parametrize("offline", [False, True])
def test_a_store_on_the_hub_is_refused_before_a_job_is_submitted(*, offline: bool) -> None:
    with pytest.raises(UserError, match=r"^config\.data\.store=hf:me/store: not read from the hub"):
        vocab_size({"data.store": "hf:me/store"}, offline=offline)


def test_a_given_size_that_does_not_fit_is_one_line(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [*WORDS, store, f"--workdir={tmp_path}", "--config.model.vocab_size=30522"]
    assert cli.main(["pretrain", *words]) == FAILED
    assert "config.model.vocab_size=30522, but ids in" in capsys.readouterr().err
