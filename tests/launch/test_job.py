"""Tests of jobs: names, variables, slices and images that are refused, and what identifies one."""

import dataclasses
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launch_jobs import AWKWARD, BUNDLE, IMAGE, job

from bert_jax.commands.launch_job import checks_of, parse_command
from bert_jax.commands.paths import check_outputs
from bert_jax.errors import UserError
from bert_jax.launch import bundle
from bert_jax.launch.job import JobId, Rendering, check_image, find_topology
from bert_jax.launch.preflight import CheckFailedError, outcome
from bert_jax.launch.sky.backend import Sky
from bert_jax.launch.slurm.backend import Slurm


@pytest.mark.parametrize("name", ["b", "b1", "bert-base-2026", "a" * 40])
def test_a_dns_label_is_a_name(name):
    assert JobId(name=name).name == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("B1", "such as b1"),
        ("my_run", "such as my-run"),
        ("My Run!", "such as my-run"),
        ("1b", "a letter first"),
        ("-b", "such as b"),
        ("b-", "such as b"),
        ("", "a letter first"),
        ("é", "a letter first"),
        ("a" * 41, "41 characters; give at most 40"),
        ("b\n", "such as b"),
    ],
)
def test_another_name_is_refused_with_one_that_is_near(name, says):
    with pytest.raises(UserError, match=says) as error:
        JobId(name=name)
    assert str(error.value).startswith("--name=")


def test_the_longest_name_of_a_pod_is_a_dns_label():
    """NAME-slice-SLICE-HOST-RANDOM, of the largest number of slices and hosts."""
    assert len(f"{'a' * 40}-slice-255-2303-x1y2z") <= 63


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ([("1A", "x")], "not the name of a variable"),
        ([("A B", "x")], "not the name of a variable"),
        ([("A", "x"), ("A", "y")], "is given 2 times"),
        ([("PYTHONPATH", "x")], "is set by the launcher"),
        ([("HF_TOKEN", "hf_x")], "--env_from=HF_TOKEN="),
        ([("wandb_api_key", "x")], "--env_from=wandb_api_key="),
        ([("DB_PASSWORD", "x")], "--env_from=DB_PASSWORD="),
    ],
)
def test_a_variable_that_cannot_be_is_refused(env, says):
    with pytest.raises(UserError, match=says) as error:
        job(env=tuple(env))
    assert "hf_x" not in str(error.value), "the value may be a secret"


def test_a_variable_is_either_given_or_a_secret():
    with pytest.raises(UserError, match="is given 2 times"):
        job(env=(("A", "x"),), env_from=(("A", "/file"),))


def test_the_command_names_the_config_file_that_travels():
    bundle = dataclasses.replace(BUNDLE, config="config/mine.py")
    command = ("pretrain", "--config=../mine.py", "--config.model.hidden_size=64", "--workdir=r")
    words = job(command=command, bundle=bundle).words("/job")
    assert words[1:3] == ("--config=/job/config/mine.py", "--config.model.hidden_size=64")
    assert job(command=command).words("/job") == command


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ("pretrain", "--config=base", "--workdir=gs://bucket/b1")},
        {"env": (("A", "1"),)},
        {"env_from": (("A", "/file"),)},
    ],
)
def test_another_command_is_another_job(changes):
    backend = Slurm()
    assert job().digest(backend) != job(**changes).digest(backend)
    assert job().digest(backend) != job().digest(Slurm(nodes=2))


def test_the_same_command_of_other_code_is_the_same_job():
    """So that a launcher finds its job from another machine."""
    other = dataclasses.replace(BUNDLE, digest="f" * 64)
    assert job().digest(Slurm()) == job(bundle=other, cwd="/elsewhere").digest(Slurm())


def test_slices_that_a_backend_does_not_have_are_refused_with_where_they_are():
    refused = {"tpu7x": "use gke"}
    assert find_topology("2xv5e-16", refused).hosts == 8
    with pytest.raises(UserError, match="--topology=tpu7x-8: use gke"):
        find_topology("tpu7x-8", refused)
    with pytest.raises(UserError, match=r"--topology: v5e-17 does not exist; nearest: v5e-16"):
        find_topology("v5e-17")


@pytest.mark.parametrize("image", ["bert", "bert:latest", f"{IMAGE[:-1]}", "@sha256:" + "1" * 64])
def test_an_image_has_a_digest(image):
    check_image(IMAGE)
    with pytest.raises(UserError, match="give the image by its digest"):
        check_image(image)


@pytest.mark.processes
def test_a_written_rendering_runs_by_hand_from_any_folder(tmp_path: Path):
    """Every word arrives as it was, whatever a shell could make of it."""
    listing = "import json, sys; open('words.json', 'w').write(json.dumps(sys.argv[1:]))"
    rendering = Rendering(
        files={"a file": "text\n", "archive.tar": b"\0\1"},
        commands=(("cp", "a file", "copied"), ("python3", "-c", listing, *AWKWARD)),
    )
    out = tmp_path / "an out folder"
    rendering.write(out)
    subprocess.run([out / "run.sh"], cwd="/", check=True)
    assert (out / "copied").read_text() == "text\n"
    assert (out / "archive.tar").read_bytes() == b"\0\1"
    import json

    assert json.loads((out / "words.json").read_text()) == list(AWKWARD)


def test_a_link_in_a_written_rendering_is_replaced_and_what_it_leads_to_kept(tmp_path: Path):
    rendering = Rendering(files={"batch.sh": "new\n"}, commands=(("true",),))
    out, mine = tmp_path / "out", tmp_path / "mine.txt"
    rendering.write(out)
    for name in ("batch.sh", "run.sh"):
        mine.write_bytes((out / name).read_bytes() + b"mine\n")
        before = mine.read_bytes()
        (out / name).unlink()
        (out / name).symlink_to("../mine.txt")
        rendering.write(out)
        assert mine.read_bytes() == before
        assert not (out / name).is_symlink()
    assert (out / "batch.sh").read_text() == "new\n"


def test_the_config_file_of_a_job_travels_to_where_its_command_may_read_it(tmp_path: Path):
    """To a folder of the launcher in the workdir; elsewhere in it no input may be."""
    mine, workdir = tmp_path / "mine.py", tmp_path / "run"
    mine.write_text("from configs.tiny import get_config\n")

    def gate(words: Sequence[str]) -> None:
        check_outputs(parse_command("launch slurm run", words)[0])

    of = job(
        workdir=str(workdir),
        command=("pretrain", f"--config={mine}", f"--workdir={workdir}"),
        bundle=bundle.make("1.0", mine, checkout=None),
    )
    gate(of.command)
    rendering = Slurm().render(of)
    rendering.write(tmp_path / "out")
    for command in rendering.commands[:-1]:
        subprocess.run(command, cwd=tmp_path / "out", check=True)
    words = of.words(f"{of.folder}/{of.bundle.name}")
    assert words[1].startswith(f"--config={workdir}/launch/b1/")
    gate(words)
    (workdir / "mine.py").write_bytes(mine.read_bytes())
    with pytest.raises(UserError, match=r"contains the input .*run/mine\.py"):
        gate([words[0], f"--config={workdir}/mine.py", words[2]])


DISK, IMAGES = (
    SimpleNamespace(devices=0, needs_bucket=image, has_image=image, checks=lambda of: [])
    for image in (False, True)
)


def inputs_of(backend: Any, words: Sequence[str], tmp_path: Path) -> str:
    """What the check of the files that a job reads says."""
    values, config = parse_command("launch slurm run", [*words, f"--workdir={tmp_path / 'run'}"])
    of = job(workdir=values.workdir, command=tuple(words))
    checks = checks_of(backend, of, config, allow_dirty=True)
    return next(check.probe() for check in checks if check.name == "inputs")


def test_the_files_of_a_task_and_the_model_are_checked_like_a_store(tmp_path: Path) -> None:
    given = ("task.name=rte", f"task.data={tmp_path}", f"init={tmp_path}/model")
    words = ["finetune", *(f"--config.{each}" for each in given)]
    with pytest.raises(CheckFailedError, match=f"config.init={tmp_path}/model: not there"):
        inputs_of(DISK, words, tmp_path)
    (tmp_path / "model").mkdir()
    assert inputs_of(DISK, words, tmp_path) == f"{tmp_path}, {tmp_path}/model there"
    (tmp_path / "model").rmdir()  # an image may have it
    assert inputs_of(IMAGES, words, tmp_path) == f"{tmp_path} there"


def test_the_folder_of_a_search_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    given = (f"init={tmp_path}/model", f"task.data={tmp_path}", f"task.retrieval={tmp_path}/b")
    words = ["finetune", "--config=sentences", *(f"--config.{each}" for each in given)]
    with pytest.raises(CheckFailedError, match=f"config.task.retrieval={tmp_path}/b: not there"):
        inputs_of(DISK, words, tmp_path)


def test_a_run_that_resumes_needs_no_model(tmp_path: Path) -> None:
    words = ["pretrain", "--config=tiny", f"--config.init={tmp_path}/model"]
    with pytest.raises(CheckFailedError, match=f"config.init={tmp_path}/model: not there"):
        inputs_of(DISK, words, tmp_path)
    (tmp_path / "run/checkpoints/1").mkdir(parents=True)
    with pytest.raises(StopIteration):  # nothing to check
        inputs_of(DISK, words, tmp_path)


def test_a_shown_rendering_has_every_command_and_file():
    text = Rendering({"a": "1\n2\n", "b.tar": b"12345"}, (("run", "a b"),)).text()
    assert text == f"$ {shlex.join(['run', 'a b'])}\n\n--- a\n1\n2\n\n--- b.tar\n(5 bytes)"


@pytest.mark.parametrize(
    ("backend", "flags", "says"),
    [
        (Sky(accelerators="H100:8", num_nodes=3), (), r"batch_size=32 is not divisible by 24"),
        (Sky(accelerators="H100:8"), ("mesh.data=16",), r"data=16.* does not fit 8 devices"),
        (Sky(accelerators="tpu-v6e-8"), ("mesh.data=16",), r"does not fit 8 devices"),
        (Slurm(nodes=3, gpus_per_node=8), (), r"batch_size=32 is not divisible by 24"),
        (Sky(accelerators="H100:8"), (), None),
        (Slurm(nodes=3), (), None),
    ],
)
def test_batch_and_mesh_are_checked_against_the_devices(
    backend: Any, flags: Sequence[str], says: str | None, tmp_path: Path
) -> None:
    words = ["pretrain", "--config=tiny", *(f"--config.{each}" for each in flags)]
    _, config = parse_command("launch sky run", [*words, f"--workdir={tmp_path / 'run'}"])
    of = job(workdir=str(tmp_path / "run"), command=tuple(words))
    checks = checks_of(backend, of, config, allow_dirty=True)
    failed = [line for check in checks if check.name == "config" for ok, line in [outcome(check)]
              if not ok]  # fmt: skip
    assert bool(failed) == bool(says)
    if says:
        assert re.search(says, failed[0])
