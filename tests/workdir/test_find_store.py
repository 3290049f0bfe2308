"""The token store of a run is found from any folder, and after both were moved together."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus import small_store
from tiny_words import TINY

from bert_jax import cli
from bert_jax.exit_codes import DONE
from bert_jax.workdir import description
from bert_jax.workdir.find_store import find_store
from bert_jax.workdir.layout import Workdir


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """The digests of a run on the store proj/store."""
    store = small_store(tmp_path / "proj" / "store")
    return {"tokenizer": store.tokenizer_digest, "train": store.train.digest}


def keep(proj: Path) -> Path:
    return proj


def move(proj: Path) -> Path:
    return proj.rename(proj.with_name("moved"))


@pytest.mark.parametrize("recorded", ["store", "proj/store", "{proj}/store"])
@pytest.mark.parametrize("run", ["run", "runs/of/today"])
@pytest.mark.parametrize("change", [keep, move])
def test_a_store_is_found_above_the_workdir(
    recorded: str,
    run: str,
    change: Callable[[Path], Path],
    data: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = recorded.format(proj=tmp_path / "proj")
    proj = change(tmp_path / "proj")
    monkeypatch.chdir(tmp_path.parent)
    workdir = Workdir.open(proj.relative_to(tmp_path.parent) / run)
    assert find_store(workdir, recorded, data) == str(proj / "store")


def test_another_store_of_the_name_is_not_taken(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tmp_path / "proj/store")
    small_store(tmp_path / "proj/store", words="v")
    assert find_store(Workdir.open(tmp_path / "proj/run"), "store", data) == "store"
    assert find_store(Workdir.open(tmp_path / "run"), "gs://b/store", data) == "gs://b/store"


@pytest.mark.slow
def test_commands_find_the_store_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    small_store(tmp_path / "texts" / "store")
    monkeypatch.chdir(tmp_path / "texts")
    run = tmp_path / "runs" / "run"
    words = [*TINY, "--config.data.store=store", f"--workdir={run}"]
    assert cli.main(["pretrain", *words]) == DONE
    recorded = description.read_description(Workdir.open(run))["config"]["data"]["store"]
    assert recorded == str(tmp_path / "texts" / "store")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["data", "batch", f"--workdir={run}", "--step=1"]) == DONE
    assert cli.main(["evaluate", f"--workdir={run}", "--batches=1"]) == DONE
    assert cli.main(["convert", "export", f"--workdir={run}", "--out=out"]) == DONE
    assert "books" in Path("out/README.md").read_text()
