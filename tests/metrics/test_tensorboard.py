"""What TensorBoard shows of a run beside its curves: descriptions, hparams, its name."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from bert_jax.metrics.tensorboard import ScalarEvents, description
from bert_jax.workdir.layout import Workdir

TRAINING = Path(__file__).resolve().parents[2] / "docs" / "training_reference.md"


def summaries(folder: Path) -> dict[str, list]:
    """The values of an event file, by tag."""
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), {}
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        for value in Event.FromString(data[12 : 12 + size]).summary.value:
            found.setdefault(value.tag, []).append(value)
        data = data[16 + size :]
    return found


def test_scalars_have_descriptions_and_the_run_its_hparams(tmp_path):
    hparams = {"seed": 3, "data.masking": "token", "keep_best": True, "warmup_steps": None}
    events = ScalarEvents(epath.Path(tmp_path), 0, hparams)
    events.write(1, {"train/nsp/books/accuracy": 0.5, "train/attention/layer_0/head_1/left": 0.2})
    events.write(2, {"train/nsp/books/accuracy": 0.6})
    events.close()
    found = summaries(tmp_path)
    first, second = found["train/nsp/books/accuracy"]
    assert first.metadata.summary_description == "Share of the predictions that are right."
    assert abs(second.simple_value - 0.6) < 1e-6
    (attention,) = found["train/attention/layer_0/head_1/left"]
    assert "neighbouring token" in attention.metadata.summary_description
    (session,) = found["_hparams_/session_start_info"]
    content = HParamsPluginData.FromString(session.metadata.plugin_data.content)
    values = content.session_start_info.hparams
    assert (values["seed"].number_value, values["data.masking"].string_value) == (3, "token")
    assert (values["keep_best"].bool_value, "warmup_steps" in values) == (True, False)
    (experiment,) = found["_hparams_/experiment"]
    content = HParamsPluginData.FromString(experiment.metadata.plugin_data.content)
    assert [m.name.tag for m in content.experiment.metric_infos] == ["train/loss", "eval/loss"]


def test_every_scalar_that_the_page_describes_has_a_description():
    table = TRAINING.read_text("utf-8").partition("| scalar |")[2].partition("\n\n")[0]
    names = re.findall(r"`([\w/]+)`", "".join(re.findall(r"^\|.*?\|", table, re.MULTILINE)))
    names = [*names, "hosts/data_wait_max", "hosts/data_wait_median"]
    assert len(names) > 15
    assert not [name for name in names if not description(f"train/{name}")]


def test_a_workdir_is_called_like_its_folder(tmp_path, monkeypatch):
    (tmp_path / "my run").mkdir()
    monkeypatch.chdir(tmp_path / "my run")
    for folder in (".", "../my run/", tmp_path / "my run", "gs://bucket/my run"):
        assert Workdir.open(folder).name == "my run"


@pytest.mark.processes
def test_no_start_waits_for_what_tensorboardx_could_use(tmp_path):
    """It imports PyTorch and Google's storage where they are installed, which takes seconds."""
    (tmp_path / "torch.py").write_text("print('imported')\n")
    program = (
        "import sys, bert_jax.metrics.tensorboard\n"
        "assert not {'torch', 'google.cloud.storage'} & set(sys.modules)\n"
        "import torch\n"
    )
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).resolve().parents[2])))
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr
