"""The real gcloud takes what the tpu backend renders, and asks the API for what is meant."""

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import gcloud_transcripts
import pytest
from gcs_emulator import Emulator
from launch_jobs import job
from test_rendering import CASES
from tpu_cloud import TpuCloud

from bert_jax.commands.launch_job import _check_remote
from bert_jax.errors import UserError
from bert_jax.hardware import slices
from bert_jax.launch.tpu.backend import Tpu
from bert_jax.launch.tpu.queued_resources import ApiError, QueuedResources
from bert_jax.launch.tpu.reconcile import Resource, is_transient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("engines"),  # beside tests with deadlines, as those with Slurm
    pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed"),
]
TPU_CASES = {name: case for name, case in CASES.items() if isinstance(case[0], Tpu)}


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TpuCloud]:
    with TpuCloud(tmp_path / "machines", {}) as made:
        made.cues.stays = "ACCEPTED"
        for name, value in gcloud_transcripts.settings(made.url, tmp_path / "settings").items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def bucket(cloud: TpuCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator("bucket") as server:
        name = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"
        monkeypatch.setenv(name, f"{server.url}/storage/v1/")
        yield server


@pytest.mark.parametrize("name", TPU_CASES)
def test_gcloud_takes_every_rendered_line(
    name: str, cloud: TpuCloud, bucket: Emulator, tmp_path: Path
) -> None:
    """As the script of `--dry_run` has them: the uploads, too."""
    backend, of = TPU_CASES[name]
    rendering = backend.render(of)
    rendering.write(tmp_path / "files")
    script = tmp_path / "files" / "run.sh"
    script.write_text(script.read_text().replace("--project=p ", "--project=the-project "))
    done = subprocess.run([script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    job_file, archive = rendering.files["job.json"], rendering.files[f"{of.bundle.name}.tar"]
    assert bucket.names("bucket") == [
        "b1/launch/b1/0001/job.json", f"b1/launch/b1/{of.bundle.name}.tar",
    ]  # fmt: skip
    assert bucket.read("bucket", "b1/launch/b1/0001/job.json").decode() == job_file
    assert bucket.read("bucket", f"b1/launch/b1/{of.bundle.name}.tar") == archive
    ((_, path, body),) = (one for one in cloud.requests if one[0] == "POST")
    assert path.startswith(f"/v2/projects/the-project/locations/{backend.zone}/queuedResources?")
    assert "queuedResourceId=b1-1" in path
    (spec,) = body["tpu"]["nodeSpec"]
    asked = slices.find(spec["node"]["acceleratorType"])
    count = spec.get("multisliceParams", {}).get("nodeCount", 1)
    assert (asked.topology, count) == (of.topology.topology, of.topology.count)
    assert ("spot" in body) == backend.spot
    assert ("reservationName" in body or "guaranteed" in body) == backend.reserved
    metadata = spec["node"]["metadata"]
    assert metadata["startup-script"] == rendering.files["startup.sh"]
    assert metadata["bert-jax-agent"].encode() == rendering.files["agent.txt"]
    assert json.loads(metadata["bert-jax-resource"])["records"] == of.folder
    assert spec["node"]["networkConfig"]["enableExternalIps"] != backend.internal_ips


def test_an_interrupted_upload_is_completed_in_its_place(
    cloud: TpuCloud, bucket: Emulator, tmp_path: Path
) -> None:
    (tmp_path / "store/train").mkdir(parents=True)
    (tmp_path / "store/manifest.json").write_text("{}")
    (tmp_path / "tokens.npy").write_text("tokens")
    (tmp_path / "store/train/tokens.npy").symlink_to("../../tokens.npy")  # on a larger disk
    with pytest.raises(UserError) as refusal:
        _check_remote("gs://bucket/b1", {"config.data.store": f"{tmp_path}/store"})
    words = shlex.split(str(refusal.value).rpartition(": ")[2])
    for _ in range(2):
        subprocess.run(words, check=True, capture_output=True)
        assert bucket.names("bucket") == ["store/manifest.json", "store/train/tokens.npy"]
        bucket.delete("bucket", "store/train/tokens.npy")


def test_a_job_that_exists_is_not_submitted_by_hand_over_it(
    cloud: TpuCloud, bucket: Emulator, tmp_path: Path
) -> None:
    backend, of = TPU_CASES["tpu_v2-8"]
    record = "b1/launch/b1/0001/job.json"
    bucket.write("bucket", record, b"of the job that exists")
    dataclasses.replace(backend, project="the-project").render(of).write(tmp_path / "files")
    done = subprocess.run([tmp_path / "files" / "run.sh"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "ERROR: HTTPError 412" in done.stderr
    assert bucket.read("bucket", record) == b"of the job that exists"
    assert cloud.requests == []


def test_gcloud_refuses_a_flag_that_it_does_not_have(cloud: TpuCloud, tmp_path: Path) -> None:
    """So the test above can fail."""
    rendering = TPU_CASES["tpu_v2-8"][0].render(TPU_CASES["tpu_v2-8"][1])
    rendering.write(tmp_path / "files")
    words = [*rendering.commands[-1], "--spott"]
    done = subprocess.run(words, cwd=tmp_path / "files", capture_output=True, text=True)
    assert done.returncode == 2
    assert cloud.requests == []


def test_the_transcripts_are_what_gcloud_does(tmp_path: Path) -> None:
    version = json.loads(subprocess.check_output(["gcloud", "version", "--format=json"]))
    recorded = json.loads(gcloud_transcripts.RECORDED.read_text())
    (of,) = (json.loads(t["stdout"]) for t in recorded if "version" in t["words"])
    now = gcloud_transcripts.record(tmp_path)
    for old, new in zip(recorded, now, strict=True):
        assert old["words"] == new["words"]
        assert old["requests"] == new["requests"], (
            f"gcloud {version['Google Cloud SDK']} makes other requests than "
            f"{of['Google Cloud SDK']}: PYTHONPATH=tests/support python "
            "tests/support/gcloud_transcripts.py"
        )


@pytest.mark.parametrize("program", ["real", "recorded"])
def test_queued_resources_are_requested_listed_and_deleted(
    program: str, cloud: TpuCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gcloud_transcripts.gcloud(tmp_path / "bin", recorded=program == "recorded")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    of = job("v4-16")
    api = Tpu(zone="us-central2-b")._api(of, (1, "a1"))
    assert api.list() == []
    api.create(3)
    api.create(3)  # a launcher that did not learn of the first
    assert api.list() == [Resource(3, "ACCEPTED", submission="a1")]
    other = QueuedResources("b1", "gs://bucket/other/launch/b1", ("--zone=us-central2-b",))
    with pytest.raises(Exception, match="b1-3 is not of this job and workdir"):
        other.list()
    cloud.cues.seconds = 0.0
    api.delete(3)
    while api.list():
        pass
    api.delete(3)
    cloud.cues.refuse = (429, "Quota limit 'TPU' has been exceeded")
    with pytest.raises(ApiError) as refused:
        api.create(4)
    assert str(refused.value) == "RESOURCE_EXHAUSTED: Quota limit 'TPU' has been exceeded"
    assert not is_transient(refused.value.code, str(refused.value))
    if program == "real":  # repeats a request for half a minute after 503
        return
    cloud.cues.fail_every = 1
    with pytest.raises(ApiError) as failed:
        api.list()
    assert is_transient(failed.value.code, str(failed.value))
