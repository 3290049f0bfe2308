"""`bert-jax launch`: what a user may get wrong, in one line before anything is created."""

import shutil

import pytest

from bert_jax import cli, exit_codes

IMAGE = f"example.org/bert@sha256:{'1' * 64}"
POD = "--workdir=gs://bucket/b1 --config.data.store=gs://bucket/store --config.model.vocab_size=99"


@pytest.fixture
def only_git(tmp_path_factory, monkeypatch):
    """No program but git: nothing else can be asked, and nothing created."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.processes
@pytest.mark.parametrize("dry_run", [(), ("--dry_run",)])
def test_every_path_that_hosts_do_not_have_is_one_line(
    only_git, capsys, dry_run, tmp_path, monkeypatch
):
    """Also where nothing would be created, since the commands that are printed would fail. Each may
    be run again after it was interrupted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    place = ["tpu", "run", "--name=b1", "--topology=v6e-16", "--zone=z", *dry_run]
    given = (
        "task.name=sst2",
        "init=my model",
        "task.data=SST-2",
        f"task.tokenizer={tmp_path}/vocab.txt",
    )
    words = [*place, "finetune", "--workdir=run", *(f"--config.{each}" for each in given)]
    assert cli.main(["launch", *words]) == exit_codes.FAILED
    out, err = capsys.readouterr()
    copy = "the hosts do not have it; copy it and give"
    assert (out, err.splitlines()) == ("", [
        "error: --workdir=run: each host would have one of its own; give one in a bucket: "
        "gs://BUCKET/run",
        f"--config.task.data=SST-2: {copy} --config.task.data=gs://BUCKET/SST-2: gcloud storage "
        "rsync --recursive --no-ignore-symlinks SST-2 gs://BUCKET/SST-2",
        f"--config.init=my model: {copy} --config.init=gs://BUCKET/my model: gcloud storage rsync "
        "--recursive --no-ignore-symlinks 'my model' 'gs://BUCKET/my model'",
        f"--config.task.tokenizer={tmp_path}/vocab.txt: {copy} "
        f"--config.task.tokenizer=gs://BUCKET/vocab.txt: gcloud storage cp {tmp_path}/vocab.txt "
        "gs://BUCKET/vocab.txt",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "program"), [("slurm stop --workdir=run", "squeue"), ("gke status", "kubectl")]
)
def test_a_program_that_is_missing_is_one_line(only_git, capsys, backend, program):
    assert cli.main(["launch", *backend.split(), "--name=b1"]) == exit_codes.FAILED
    err = capsys.readouterr().err
    assert err.startswith(f"error: {program}: not found on this machine (")
    assert err.count("\n") == 1


@pytest.mark.parametrize("launcher", ["local run --processes=2", "slurm run --name=b1 --dry_run"])
@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--time_limit=xx", "give a duration above zero"),
        ("--time_limit=1s", "give more than config.deadlines.grace"),
        ("--time_budget=xx", "give a duration above zero"),
        ("--profile=xx", "give FIRST:END"),
    ],
)
def test_flags_of_the_job_are_checked_before_anything_is_created(
    launcher, flag, reason, only_git, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    words = ["launch", *launcher.split(), "pretrain", "--config=tiny", "--workdir=run", flag]
    assert cli.main(words) == exit_codes.USAGE
    assert f"usage: {flag}: {reason}" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.processes
def test_a_dry_run_asks_no_cluster_and_creates_nothing(only_git, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "slurm", "run", "--name=b1", "--dry_run", "pretrain", "--config=tiny"]
    assert cli.main([*words, "--workdir=run"]) == 0
    shown = capsys.readouterr().out
    assert "$ sbatch " in shown
    assert f"--output={tmp_path}/run/launch/b1/log" in shown
    assert not list(tmp_path.iterdir())


TASK = "finetune --config.task.name=sst2 --config.init=/models/base"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "trainer"),
    [
        ("slurm run", f"{TASK} --config.task.data=sst2 --workdir=run"),
        (
            f"gke run --topology=v5e-16 --image={IMAGE}",
            f"{TASK} --config.task.data=gs://bucket/sst2 --workdir=gs://bucket/run",
        ),
        (
            "tpu run --topology=v5e-16 --zone=z",
            "finetune --config.task.name=sst2 --config.init=gs://bucket/base@20 "
            "--config.task.data=gs://bucket/sst2 --workdir=gs://bucket/run",
        ),
    ],
)
def test_a_job_may_fine_tune(only_git, capsys, monkeypatch, tmp_path, words, trainer):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["launch", *words.split(), "--name=b1", "--dry_run", *trainer.split()]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in trainer.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    ["tpu run --topology=v5e-16 --zone=z", f"gke run --topology=v5e-16 --image={IMAGE}"],
)
@pytest.mark.parametrize("init", ["", "--config.init=gs://bucket/model"])
def test_a_dry_run_needs_no_network(only_git, capsys, monkeypatch, tmp_path, words, init):
    """Not even to find out that there is none: it may take minutes, and the user may be offline."""

    def refuse(*of, **options):
        raise AssertionError(f"asks {of}")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    trainer = f"pretrain --config=base {POD.rpartition(' ')[0]} {init}"
    assert cli.main(["launch", *words.split(), "--name=b1", "--dry_run", *trainer.split()]) == 0
    assert "b1" in capsys.readouterr().out


@pytest.mark.processes
def test_a_dry_run_writes_to_a_new_folder_alone(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "slurm", "run", "--name=b1", "--dry_run", "--out=mine", "pretrain"]
    words += ["--config=tiny", "--workdir=run"]
    for _ in range(2):  # the second replaces the first
        assert cli.main(words) == 0
    assert {path.suffix for path in (tmp_path / "mine").iterdir()} == {".sh", ".tar"}
    (tmp_path / "mine" / "run.sh").unlink()
    assert cli.main(words) == exit_codes.FAILED
    assert (
        capsys.readouterr().err
        == "error: mine: exists and is not a dry run of bert-jax; give a new folder\n"
    )
