"""Jobs on TPU slices, end to end: gcloud, a cloud on loopback, hosts that train.

Every machine runs its startup script unchanged. `gcloud` is the real one where it is installed, and
else replays what the real one did (gcloud_transcripts.py); the end of the tests' output says which.
Tests of what gcloud does not change always replay it: that takes a tenth of the time.
"""

import dataclasses
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import small_config, small_store
from processes import assert_same_bits, config_file
from runs import read_records
from tpu_cloud import NO_QUOTA
from tpu_launch import Site, site, until

from bert_jax.config.schema import Config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("engines"),  # beside tests with deadlines, as those with Slurm
]

STEPS = 240


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """One layer, with dropout; a checkpoint every 20 steps; its store is on this disk. The loss of
    every step is recorded, as a mean over steps would differ where a run was stopped."""
    config = small_config(small_store(tmp_path_factory.mktemp("store"), documents=120))
    model = dataclasses.replace(
        config.model,
        num_hidden_layers=1,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    return dataclasses.replace(
        config,
        model=model,
        phases=(dataclasses.replace(config.phases[0], steps=STEPS),),
        log_every_steps=1,
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=20, keep=100),
        evaluation=dataclasses.replace(config.evaluation, every_steps=STEPS, batches=1),
        deadlines=dataclasses.replace(config.deadlines, peer=10.0),
    )


@pytest.fixture(scope="module")
def undisturbed(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of the run of two processes to which nothing happened."""
    folder = tmp_path_factory.mktemp("undisturbed")
    words = ["-m", "bert_jax", "launch", "local", "run", "--processes=2", "pretrain"]
    path = config_file(config, folder / "config.py")
    flags = [f"--config={path}", f"--workdir={folder / 'run'}", "--cpu_devices=1"]
    subprocess.run([sys.executable, *words, *flags], check=True, capture_output=True, timeout=900)
    return folder / "run"


@pytest.fixture
def at(tmp_path: Path, config: Config) -> Iterator[Site]:
    with site(tmp_path, {"store": Path(config.data.store)}, recorded=True) as made:
        yield made


@pytest.fixture
def with_gcloud(tmp_path: Path, config: Config) -> Iterator[Site]:
    with site(tmp_path, {"store": Path(config.data.store)}, recorded=False) as made:
        yield made


@pytest.fixture
def remote(config: Config) -> Config:
    data = dataclasses.replace(config.data, store="gs://bucket/store")
    return dataclasses.replace(config, data=data)


def said_by_hosts(folder: Path, name: str) -> list[list[list[str]]]:
    """The lines that the processes of a queued resource wrote to their disks, by host and file."""
    return [
        [log.read_text().splitlines() for log in sorted(host.glob("home/logs/*"))]
        for host in sorted((folder / "machines" / name).iterdir())
    ]


def test_a_job_is_preempted_loses_a_host_and_gives_the_bits_of_an_undisturbed_one(
    with_gcloud: Site, remote: Config, undisturbed: Path, tmp_path: Path
) -> None:
    at = with_gcloud
    launcher = at.run(remote, "v4-16", "--spot")
    until(lambda: at.saved(40), "checkpoint", launcher)
    at.cloud.preempt("b1-1")
    launcher.wait_for("b1-1: preempted; starting again (99 of 100 preemptions left)")
    until(lambda: at.saved(120), "later checkpoint", launcher)
    at.cloud.lose("b1-2", 1)
    launcher.wait_for("starting again in 1 s (2 of 3 failures left)")
    assert launcher.code() == 0, launcher.said()
    assert "b1: ended with 0" in launcher.said()
    assert at.cloud.created == ["b1-1", "b1-2"]
    assert at.cloud.deleted == [("b1-1", "SUSPENDED"), ("b1-2", "ACTIVE")]
    assert at.cloud.states() == {}
    assert_same_bits(at.download("b1", tmp_path / "tpu"), undisturbed)

    again = at.run(remote, "v4-16", "--spot")  # the same command finds that it is done
    assert again.code() == 0
    assert at.cloud.created == ["b1-1", "b1-2"]

    printed = at.command("logs")
    assert printed.code() == 0
    lines = printed.said().splitlines()
    for index, files in enumerate(said_by_hosts(tmp_path, "b1-2")):
        mine = [line.partition(" | ")[2] for line in lines if line.startswith(f"host-{index} | ")]
        last = mine[-sum(map(len, files)) :]  # those of b1-1 are before
        assert Counter(last) == Counter(itertools.chain.from_iterable(files))
        for file in files:  # the files are written at the same time
            assert [line for line in last if line in set(file)] == file

    deleted = at.command("delete")
    assert deleted.code() == 0
    assert "no queued resource and no object below gs://bucket/b1/launch/b1" in deleted.said()
    assert at.objects() == []
    assert at.objects(below="checkpoints/")


@pytest.mark.nightly
def test_a_job_is_stopped_and_resumes_on_other_slices(
    at: Site, remote: Config, undisturbed: Path, tmp_path: Path
) -> None:
    at.cloud.cues.one_is_late = True
    first = at.run(remote, "v4-32")
    first.wait_for("b1-1: booting, 3 of 4 hosts there")
    at.cloud.cues.one_is_late = False
    until(lambda: at.saved(20), "checkpoint", first)
    stopped = at.command("stop")
    assert stopped.code() == 0, stopped.said()
    assert first.code() == 42, first.said()
    assert at.cloud.states() == {}
    step = _newest(at)
    second = at.run(remote, "v4-16")
    until(lambda: at.saved(step + 40), "later checkpoint", second)
    assert at.command("stop").code() == 0
    assert second.code() == 42
    assert _newest(at) < STEPS
    assert at.run(remote, "v4-8").code() == 0
    assert [name for name, _ in at.cloud.deleted] == ["b1-1", "b1-2", "b1-3"]
    workdir = at.download("b1", tmp_path / "tpu")
    expected = {r["step"]: r["loss"] for r in read_records(undisturbed, "train")}
    losses = {r["step"]: r["loss"] for r in read_records(workdir, "train")}
    assert losses.keys() == expected.keys()
    for step, loss in losses.items():
        assert loss == pytest.approx(expected[step], rel=1e-6), f"step {step}"


def _newest(at: Site) -> int:
    names = at.objects(below="checkpoints/")
    return max(int(name.split("/")[2]) for name in names if name.endswith("/commit_success.txt"))


@pytest.mark.nightly
def test_a_launcher_may_be_killed_anywhere_and_the_machines_may_stay(
    at: Site, remote: Config
) -> None:
    """Also where the machines may not delete themselves: a launcher does it."""
    at.cloud.cues.may_delete = False
    at.cloud.cues.seconds = 1.0
    launcher = at.run(remote, "v4-8")
    for moment in (
        lambda: at.objects(),  # submitted, not requested
        lambda: at.cloud.states(),  # requested
        lambda: at.saved(20),
    ):
        until(moment, "moment to kill it", launcher)
        launcher.kill()
        launcher = at.run(remote, "v4-8")
    at.cloud.preempt("b1-1")
    for moment in (
        lambda: any("retired" in name for name in at.objects()),
        lambda: at.cloud.states() == {} or "b1-2" in at.cloud.states(),
        lambda: "b1-2" in at.cloud.states(),
        lambda: any(name.endswith("/end.json") for name in at.objects()),
    ):
        until(moment, "moment to kill it", launcher)
        launcher.kill()
        launcher = at.run(remote, "v4-8")
    assert launcher.code() == 0, launcher.said()
    assert at.cloud.created == ["b1-1", "b1-2"]
    assert at.cloud.deleted == [("b1-1", "SUSPENDED"), ("b1-2", "ACTIVE")]
    assert at.cloud.states() == {}


@pytest.mark.nightly
def test_a_slow_cloud_without_capacity_that_fails_is_waited_for_and_left_without_a_launcher(
    at: Site, remote: Config
) -> None:
    """A job whose launcher is killed has no machine a minute after its end."""
    at.cloud.cues.without_capacity, at.cloud.cues.fail_every = 1, 5
    launcher = at.run(remote, "v4-8")
    launcher.wait_for("There is no more capacity in the zone")
    at.cloud.cues.stays = "PROVISIONING"
    launcher.wait_for("b1-2: creating the machines")
    at.cloud.cues.stays = ""
    until(lambda: at.saved(20), "checkpoint", launcher)
    launcher.kill()
    (machine,) = at.cloud.machines("b1-2")
    until(lambda: not any(machine.processes("pretrain")), "end of the training")
    until(lambda: at.cloud.states() == {}, "end of the machines", seconds=60.0)
    assert at.cloud.deleted == [("b1-1", "FAILED"), ("b1-2", "ACTIVE")]
    launch = json.loads(at.bucket.read("bucket", "b1/launch/b1/0001/end.json"))
    assert launch["code"] == 0
    again = at.run(remote, "v4-8")
    assert again.code() == 0, again.said()
    assert "b1: ended with 0" in again.said()
    assert at.cloud.created == ["b1-1", "b1-2"]


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        ((429, NO_QUOTA), f"RESOURCE_EXHAUSTED: {NO_QUOTA}"),
        ((403, "Permission 'tpu.nodes.create' denied"), "PERMISSION_DENIED: Permission"),
    ],
)
def test_a_request_that_is_refused_ends_with_its_line(
    at: Site, remote: Config, refusal: tuple[int, str], line: str
) -> None:
    at.cloud.cues.refuse = refusal
    launcher = at.run(remote, "v4-8")
    assert launcher.code() == 1
    assert f"b1: ended with 1 ({line}" in launcher.said()
    assert at.cloud.created == []


def test_what_a_user_may_get_wrong_is_said_before_anything_exists(at: Site, remote: Config) -> None:
    at.cloud.put("b1-1", {"tpu": {"nodeSpec": [{"node": {"metadata": {}}}]}})
    taken = at.run(remote, "v5e-16")  # of which this zone has none, either
    assert taken.code() == 1
    assert "zone: FAILED: us-central2-b does not offer v5litepod-16; --zone=… of us-west4-a" in (
        taken.said()
    )
    assert "name: FAILED: --name=b1: the queued resource b1-1 is not of this job" in taken.said()
    assert at.objects() == []
    assert at.cloud.created == []
