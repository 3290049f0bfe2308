"""What each backend renders, as golden texts; how words reach the trainer; shell files."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from launch_jobs import AWKWARD, BUNDLE, IMAGE, golden, job, rented

from bert_jax.launch.bundle import make
from bert_jax.launch.gke.backend import Gke
from bert_jax.launch.job import Backend, Job
from bert_jax.launch.restarts import Limits
from bert_jax.launch.sky.backend import Sky
from bert_jax.launch.slurm.backend import Slurm
from bert_jax.launch.tpu.backend import Tpu

GOLDENS = Path(__file__).parents[1] / "goldens" / "launch"
REGENERATE = "PYTHONPATH=tests/support python tests/launch/test_rendering.py"
ONE = {"env": (("A", "it's"),), "limits": Limits(max_preemptions=-1, max_failures=0, grace=60.4)}
# name -> backend, its job.
CASES: dict[str, tuple[Backend, Job]] = {
    "slurm": (Slurm(), job()),
    "slurm_gpus": (Slurm(nodes=2, gpus_per_node=8, time="24:00:00"), job()),
    "slurm_options": (
        Slurm(tasks_per_node=4, partition="low", account="me", sbatch=("--qos=a b", "--exclusive")),
        job(**ONE, env_from=(("HF_TOKEN", "/home/me/a token"),), workdir="/shared/50% off"),
    ),
    "gke_v6e-16": (Gke(image=IMAGE), job("v6e-16")),
    "gke_v5e-8": (Gke(image=IMAGE), job("v5e-8")),
    "gke_2xv6e-64_queue": (Gke(image=IMAGE, queue="tpus"), job("2xv6e-64")),
    "gke_tpu7x-16_reservation": (Gke(image=IMAGE, reservation="ours"), job("tpu7x-16")),
    "gke_v4-16_options": (
        Gke(
            image=IMAGE, context="c", namespace="n", service_account="trainer", spot=True,
            coarse_restarts=True,
        ),
        job("v4-16", **ONE, env_from=(("HF_TOKEN", "hf/token"),)),
    ),
    "sky": (Sky(accelerators="H100:8"), rented()),
    "sky_options": (
        Sky(accelerators="tpu-v6e-8", use_spot=True, infra="gcp/us-east5"),
        rented(
            **ONE, env_from=(("HF_TOKEN", "HF_TOKEN"),),
            bundle=dataclasses.replace(BUNDLE, has_code=False, config="config/mine.py"),
        ),
    ),
    "tpu_v5e-16_spot": (Tpu(zone="us-west4-a", spot=True), job("v5e-16")),
    "tpu_v2-8": (Tpu(zone="us-central1-f", project="p"), job("v2-8")),
    "tpu_v3-32": (Tpu(zone="europe-west4-a"), job("v3-32")),
    "tpu_v4-16_reserved": (Tpu(zone="us-central2-b", reserved=True), job("v4-16")),
    "tpu_2xv6e-64": (Tpu(zone="us-east5-b", project="p"), job("2xv6e-64")),
    "tpu_v5p-8_options": (
        Tpu(
            zone="us-east5-a", project="p", service_account="t@p.iam.gserviceaccount.com",
            network="n", subnetwork="s", internal_ips=True, runtime_version="v2-alpha-tpuv5",
        ),
        job("v5p-8", **ONE, env_from=(("HF_TOKEN", "hf"),)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_backend_renders_what_it_did(name: str) -> None:
    path = GOLDENS / f"{name}.txt"
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    assert golden(*CASES[name]) == expected, f"if the change is meant: {REGENERATE}"


def test_no_golden_outlives_its_case() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_shell_files_pass_shellcheck(name: str, tmp_path: Path) -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    rendering = CASES[name][0].render(CASES[name][1])
    rendering.write(tmp_path)
    for path in [*tmp_path.glob("*.sh")]:
        done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def awkward_job(**changes: Any) -> Job:
    """A job with words and variables that a shell or Kubernetes could change."""
    words = tuple(f"--config.data.store={word}" for word in AWKWARD)
    env = tuple((f"A{i}", word) for i, word in enumerate(AWKWARD))
    return job(command=("pretrain", *words), env=env, **changes)


# In place of the trainer: prints its arguments and the variables.
TRAINER = """#!{python}
import json, os, sys
env = [os.environ[f"A{{i}}"] for i in range({count})]
print(json.dumps([sys.argv[1:], env, os.environ.get("SECRET"), os.environ.get("https_proxy")]))
"""
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.mark.processes
def test_slurm_hands_words_and_variables_to_the_trainer_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, path = tmp_path / "a python", tmp_path / "bin"
    trainer.write_text(TRAINER.format(python=sys.executable, count=len(AWKWARD)))
    path.mkdir()
    (path / "srun").write_text(SRUN)
    (tmp_path / "secret").write_text("hunter2 '$x\n")
    for program in (trainer, path / "srun"):
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(trainer))
    of = awkward_job(
        env_from=(("SECRET", str(tmp_path / "secret")),), workdir=str(tmp_path / "it's $HOME %j")
    )
    script = Slurm().render(of).files["batch.sh"]
    assert "hunter2" not in script
    first, _ = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "https_proxy": "http://proxy"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()  # the second is of the program that requeues
    words, env, secret, proxy = json.loads(first)
    task = ["-P", "-m", "bert_jax.launch.slurm.task", f"{of.folder}/codes"]
    assert words == [*task, str(trainer), "-P", "-m", "bert_jax", *of.command]
    assert env == list(AWKWARD)
    assert (secret, proxy) == ("hunter2 '$x", None)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """What Kubernetes makes of a word of a container's command or a value of its environment:
    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables
    """

    def one(match: re.Match) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


def test_kubernetes_hands_words_and_variables_to_the_trainer_as_they_are() -> None:
    of = awkward_job(topology="v6e-16")
    manifest = json.loads(Gke(image=IMAGE).render(of).files["jobset.json"])
    (group,) = manifest["spec"]["replicatedJobs"]
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    variables = {"HOME": "/root", "date": "today"}
    words = [expanded(word, variables) for word in container["command"]]
    assert words == ["python", "-m", "bert_jax", *of.command, "--topology=v6e-16"]
    env = {one["name"]: expanded(one["value"], variables) for one in container["env"]}
    assert [env[f"A{i}"] for i in range(len(AWKWARD))] == list(AWKWARD)


def test_pods_find_the_users_config_file(tmp_path: Path) -> None:
    (tmp_path / "my config.py").write_text("from shared import x\n")
    (tmp_path / "shared.py").write_text("x = 'ä'\n")
    bundle = make("1.0", tmp_path / "my config.py", checkout=None)
    command = ("pretrain", "--config=my config.py", "--workdir=gs://bucket/b1")
    rendering = Gke(image=IMAGE).render(job("v6e-16", bundle=bundle, command=command))
    config = json.loads(rendering.files["config.json"])
    assert rendering.commands[0] == ("kubectl", "apply", "--filename=config.json")
    manifest = json.loads(rendering.files["jobset.json"])
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    ((mount,),) = (container["volumeMounts"] for container in pod["containers"])
    ((volume,),) = (pod["volumes"],)
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    files = {
        f"{mount['mountPath']}/{item['path']}": config["data"][item["key"]]
        for item in volume["configMap"]["items"]
    }
    container = pod["containers"][0]
    path = container["command"][4].removeprefix("--config=")
    assert files[path] == "from shared import x\n"
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert files[f"{variables['PYTHONPATH']}/shared.py"] == "x = 'ä'\n"


def test_a_job_of_other_code_has_another_folder_and_the_same_name() -> None:
    """A job that waits for its next attempt keeps its code."""
    other = dataclasses.replace(BUNDLE, digest="f" * 64)
    mine, theirs = (Slurm().render(job(bundle=b)).commands[2][-1] for b in (BUNDLE, other))
    assert mine != theirs
    assert mine.startswith("--directory=/shared/b1/launch/b1/")


if __name__ == "__main__":
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for old in GOLDENS.iterdir():
        old.unlink()
    for case, (backend, of) in CASES.items():
        (GOLDENS / f"{case}.txt").write_text(golden(backend, of), encoding="utf-8")
