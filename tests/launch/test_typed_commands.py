"""Commands that a message of the launcher tells to type are taken by the parser, as they stand."""

import re
import shlex
from collections.abc import Callable, Iterator

import pytest
from compiled_reports import made
from launch_jobs import IMAGE, job
from memory_bucket import MemoryBucket

from bert_jax.aot import backends
from bert_jax.commands import launch
from bert_jax.commands.command import parse
from bert_jax.errors import UserError
from bert_jax.launch.gke import backend as gke
from bert_jax.launch.gke.backend import Gke
from bert_jax.launch.gke.kubectl import Kubectl
from bert_jax.launch.slurm import backend as slurm
from bert_jax.launch.slurm.backend import Slurm
from bert_jax.launch.slurm.queue import QueuedJob
from bert_jax.launch.tpu import backend as tpu
from bert_jax.launch.tpu import submit
from bert_jax.launch.tpu.backend import Tpu
from bert_jax.launch.tpu.submission import Submission


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of bert-jax in a message, which stand at its end or in backquotes."""
    for found in re.findall(r"bert-jax ([^`]+)", text):
        words = shlex.split(found)
        yield " ".join(words[:3]), words[3:]


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        act()
    return str(error.value)


def another_on_tpus(monkeypatch: pytest.MonkeyPatch) -> str:
    bucket, backend = MemoryBucket(), Tpu(zone="us-west4-a", project="p")
    monkeypatch.setattr(tpu, "_bucket", lambda job: bucket)
    theirs = Submission(
        digest="theirs", topology="v4-8", hosts=1, first=1, bundle="", version="", words=(),
        python_path=(), env=(), env_from=(), limits=job("v4-8").limits,
    )  # fmt: skip
    bucket.write_json("0001/job.json", theirs.to_json())
    assert submit.newest(bucket)
    return refused(lambda: backend.is_running(job("v4-8", workdir="gs://bucket/a b")))


def another_in_slurm(monkeypatch: pytest.MonkeyPatch) -> str:
    found = QueuedJob("7", "RUNNING", "n1", {"job": "theirs", "grace": "40"})
    monkeypatch.setattr(slurm, "find", lambda job: found)
    return refused(lambda: Slurm().is_running(job(workdir="/shared/a b")))


def another_in_gke(monkeypatch: pytest.MonkeyPatch) -> str:
    about = {gke.WORKDIR: "gs://bucket/b1", gke.DIGEST: "theirs"}
    found = {"metadata": {"annotations": about}, "status": {}}
    monkeypatch.setattr(Kubectl, "get", lambda self, kind, name: found)
    backend = Gke(image=IMAGE, context="there", namespace="mine")
    return refused(lambda: backend.is_running(job("v5e-16")))


MESSAGES = [another_on_tpus, another_in_slurm, another_in_gke]


@pytest.mark.parametrize("message", MESSAGES)
def test_the_command_that_ends_another_job_finds_it(message, monkeypatch):
    text = message(monkeypatch)
    ((name, words),) = commands(text)
    values, _ = parse(name, launch.COMMANDS[name], words)
    assert name.endswith(" stop")
    assert values.name == "b1"
    if name != "launch gke stop":
        assert values.workdir.endswith("/a b"), text
    if name == "launch tpu stop":
        assert (values.zone, values.project) == ("us-west4-a", "p")
    if name == "launch gke stop":
        assert (values.context, values.namespace) == ("there", "mine"), "it is in that cluster"


@pytest.mark.parametrize(
    ("backend", "topology", "other"),
    [(Tpu(zone="z"), "tpu7x-8", "launch gke run"), (Gke(image=IMAGE), "v3-32", "launch tpu run")],
)
def test_another_backend_that_has_the_slice_takes_it(backend, topology, other):
    text = refused(lambda: backend.check(job(topology)))
    ((name, _),) = commands(text)
    assert name == other
    flags = {"launch gke run": Gke(image=IMAGE), "launch tpu run": Tpu(zone="z")}
    flags[name].check(job(topology))


def test_the_page_of_a_compiled_step_ends_with_the_command_that_trains_on_its_slice():
    target = made().target
    text = backends.of(target).train_command(target, "--config=base").replace("…", "x")
    assert text.startswith("bert-jax launch tpu run ")
    words = shlex.split(text)[4:]
    values, rest = parse("launch tpu run", launch.COMMANDS["launch tpu run"], words)
    assert (values.topology, rest[:2]) == ("v5e-16", ["pretrain", "--config=base"])
    assert "--workdir=gs://x" in rest
