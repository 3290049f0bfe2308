"""benchmarks/gpu_compile.py: its error where a step takes other memory than it did before."""

import contextlib
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.config.shipped import shipped
from bert_jax.training import resolve

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize(("total", "code"), [(19.5e9, 0), (20.5e9, 1), (16e9, 1)])
def test_memory_of_gpus_that_is_another_is_an_error(
    total: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ("parameters", "optimizer", "batch", "activations and temporaries")
    memory = {**dict.fromkeys(kinds, 0), "total": total}
    answer = json.dumps({"phases": [{"memory": memory, "attention": "attention: XLA, because"}]})
    done = subprocess.CompletedProcess([], 0, answer, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("harness.find_gpu_compiler", lambda: None)
    monkeypatch.setattr("harness.machine", lambda *_: "a machine")
    path = str(FOLDER / "gpu_compile.py")
    monkeypatch.setattr(sys, "argv", [path, "--rows=2"])
    with pytest.raises(SystemExit) if code else contextlib.nullcontext():
        runpy.run_path(path, run_name="__main__")
    assert ("16.95 before" in capsys.readouterr().err) == bool(code)


def test_every_shipped_config_for_pretraining_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    rows = runpy.run_path(str(FOLDER / "gpu_compile.py"))["shipped_rows"](tmp_path)
    left_out = set(shipped()) - {row.config for row in rows}
    assert left_out == {name for name in shipped() if re.match(r"glue|sentences", name)}
    assert [row.config for row in rows if row.model] == ["continue_domain"]
    (row,) = (row for row in rows if row.model)
    model = resolve.load("continue_domain", {"init": row.model}).model
    assert (model.hidden_size, model.num_hidden_layers) == (768, 12)
    assert f"--config.init={tmp_path}" in row.words(0)
    assert str(tmp_path) not in str(row)
