"""`bert-jax launch`: what a user may get wrong, in one line before anything is created."""

import shutil

import pytest

from bert_jax import cli, exit_codes


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("pretrain", "usage: --processes=… is missing"),
        ("--processes=0 pretrain", "usage: flag --processes=0: 0 is not a positive integer"),
        (
            "--processes=2",
            "usage: launch local run needs a command after its flags, such as pretrain, finetune",
        ),
        (
            "--processes=2 pretrian",
            "usage: launch local run starts pretrain, finetune, not 'pretrian'; did you "
            "mean pretrain?",
        ),
        ("--processes=2 status", "usage: launch local run starts pretrain, finetune, not 'status'"),
        ("--processes=2 data build", "usage: launch local run starts pretrain, finetune, not 'da"),
        (
            "--processes=2 finetune --workdir=run --seeds=5",
            "usage: --seeds runs in one process, launch local run starts several; start a job for "
            "each --config.seed",
        ),
        (
            "--processes=2 pretrain --config=tiny --coordinator=here:1 --workdir=run",
            "usage: --coordinator is set by launch local run for each process; remove it",
        ),
        (
            "--processes 2 pretrain --process_id 1",
            "usage: --process_id is set by launch local run for each process; remove it",
        ),
        (
            "--processes=2 --max_failure=1 pretrain",
            "usage: unknown flag --max_failure; did ",
        ),
        ("--processes=2 pretrain --config=tiny", "usage: --workdir=… is missing"),
        (
            "--processes=2 pretrain --workdri=run",
            "usage: unknown flag --workdri; did ",
        ),
    ],
)
def test_a_command_that_cannot_be_started_is_one_line(capsys, words, line):
    """Also what is wrong with the command's own flags is said once, not by each process."""
    assert cli.main(["launch", "local", "run", *words.split()]) == exit_codes.USAGE
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(line)


def test_what_is_wrong_with_the_config_is_said_before_anything_is_started(capsys):
    words = ["--processes=2", "pretrain", "--config=tiny", "--config.deadlines.grce=1"]
    assert cli.main(["launch", "local", "run", *words, "--workdir=run"]) == exit_codes.FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: unknown key --config.deadlines.grce; did you mean deadlines.grace?\n"


IMAGE = f"example.org/bert@sha256:{'1' * 64}"
POD = "--workdir=gs://bucket/b1 --config.data.store=gs://bucket/store --config.model.vocab_size=99"


@pytest.fixture
def only_git(tmp_path_factory, monkeypatch):
    """No program but git: nothing else can be asked, and nothing created."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("slurm run pretrain --config=tiny --workdir=run", "usage: --name=… is missing"),
        ("slurm run --name=b1", "usage: launch slurm run needs a command after its flags"),
        (
            "slurm run --name=b1 pretrian --config=tiny",
            "usage: launch slurm run starts pretrain, finetune, not 'pretrian'; did you "
            "mean pretrain?",
        ),
        (
            "slurm run --name=B1 pretrain --config=tiny --workdir=run",
            "error: --name=B1: give lower-case letters, digits and dashes",
        ),
        (
            f"slurm run --name={'b' * 41} pretrain --config=tiny --workdir=run",
            f"error: --name={'b' * 41}: 41 characters; give at most 40",
        ),
        (
            "slurm run --name=b1 --node=2 pretrain --config=tiny --workdir=run",
            "usage: unknown flag --node; did you mean --nodes?",
        ),
        (
            "slurm run --name=b1 --out=there pretrain --config=tiny --workdir=run",
            "usage: --out is the folder of --dry_run; give both, or neither",
        ),
        (
            "slurm run --name=b1 pretrain --config=tiny --workdir=gs://bucket/run",
            "error: --workdir=gs://bucket/run: Slurm writes its log there",
        ),
        (
            "slurm run --name=b1 --gpus_per_node=8 --tasks_per_node=4 pretrain --config=tiny "
            "--workdir=run",
            "error: --tasks_per_node=4: with --gpus_per_node=8 each GPU has one process",
        ),
        (
            "slurm run --name=b1 --sbatch=qos pretrain --config=tiny --workdir=run",
            "error: --sbatch=qos: give an option of sbatch",
        ),
        (
            "slurm run --name=b1 --env=A pretrain --config=tiny --workdir=run",
            "usage: --env=A: give NAME=VALUE",
        ),
        (
            "slurm run --name=b1 --env=HF_TOKEN=hf_x pretrain --config=tiny --workdir=run",
            "error: --env=HF_TOKEN=…: looks like a secret",
        ),
        (
            "slurm run --name=b1 --env_from=HF_TOKEN=token.txt pretrain --config=tiny "
            "--workdir=run",
            "error: --env_from=HF_TOKEN=token.txt: give the absolute path of a file",
        ),
        ("slurm stop --name=b1", "usage: --workdir=… is missing"),
        ("slurm stop --workdir=run", "usage: --name=… is missing"),
        (
            f"gke run --name=b1 --image={IMAGE} pretrain --config=tiny {POD}",
            "usage: --topology=… is missing",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 pretrain --config=tiny {POD}",
            "usage: --image=… is missing",
        ),
        (
            f"gke run --name=b1 --topology=v6e-17 --image={IMAGE} pretrain --config=tiny {POD}",
            "error: --topology: v6e-17 does not exist; nearest: v6e-16 (4x4) and v6e-32 (4x8)",
        ),
        (
            f"gke run --name=b1 --topology=v3-32 --image={IMAGE} pretrain --config=tiny {POD}",
            "error: --topology=v3-32: gke has v4, v5e, v5p, v6e, tpu7x; use ",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image=bert:latest pretrain --config=tiny {POD}",
            "error: --image=bert:latest: give the image by its digest",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image={IMAGE} --dry_run pretrain --config=tiny "
            "--workdir=run --config.data.store=gs://bucket/store",
            "error: --workdir=run: each host would have one of its own; give one in a bucket: "
            "gs://BUCKET/run\n",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image={IMAGE} pretrain --config=tiny "
            "--workdir=gs://bucket/b1",
            "error: --config.data.store=: each host would have one of its own; give one in a "
            "bucket: gs://bucket/store\n",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image={IMAGE} pretrain --config=tiny "
            "--workdir=gs://bucket/b1 --config.data.store=store",
            "error: --config.data.store=store: the hosts do not have it; copy it and give "
            "--config.data.store=gs://bucket/store: gcloud storage cp --recursive store "
            "gs://bucket/store\n",
        ),
        (
            "tpu run --name=b1 --topology=v6e-16 --zone=z --dry_run finetune "
            "--workdir=gs://bucket/b1 --config.task.data=gs://bucket/task --config.init=a/run@20",
            "error: --config.init=a/run@20: the hosts do not have it; copy it and give "
            "--config.init=gs://bucket/run@20: gcloud storage cp --recursive a/run "
            "gs://bucket/run\n",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image={IMAGE} finetune "
            "--workdir=gs://bucket/b1 --config.task.data=task",
            "error: --config.task.data=task: the hosts do not have it; copy it and give ",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image={IMAGE} finetune "
            "--workdir=gs://bucket/b1 --config.task.data=gs://bucket/t --config.task.held_out=t",
            "error: --config.task.held_out=t: the hosts do not have it; copy it and give ",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image={IMAGE} --spot --reservation=r pretrain "
            f"--config=tiny {POD}",
            "error: --spot with --reservation: reserved nodes are not spot; give one",
        ),
        (
            f"gke run --name=b1 --topology=v6e-16 --image={IMAGE} --env_from=A=b pretrain "
            f"--config=tiny {POD}",
            "error: --env_from=A=b: give SECRET/KEY of a Kubernetes secret",
        ),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_is_one_line(only_git, capsys, monkeypatch, tmp_path, words, line):
    monkeypatch.chdir(tmp_path)
    code = cli.main(["launch", *words.split()])
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert err.startswith(line)
    assert "hf_x" not in err
    assert code == (exit_codes.USAGE if line.startswith("usage") else exit_codes.FAILED)
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
@pytest.mark.parametrize("dry_run", [(), ("--dry_run",)])
def test_every_path_that_hosts_do_not_have_is_one_line(only_git, capsys, dry_run):
    """Also where nothing would be created, since the commands that are printed would fail."""
    place = ["tpu", "run", "--name=b1", "--topology=v6e-16", "--zone=z", *dry_run]
    given = ("task.name=sst2", "init=my model", "task.data=SST-2", "task.tokenizer=/v/vocab.txt")
    words = [*place, "finetune", "--workdir=run", *(f"--config.{each}" for each in given)]
    assert cli.main(["launch", *words]) == exit_codes.FAILED
    out, err = capsys.readouterr()
    copy = "the hosts do not have it; copy it and give"
    assert (out, err.splitlines()) == ("", [
        "error: --workdir=run: each host would have one of its own; give one in a bucket: "
        "gs://BUCKET/run",
        f"--config.task.data=SST-2: {copy} --config.task.data=gs://BUCKET/SST-2: gcloud storage cp "
        "--recursive SST-2 gs://BUCKET/SST-2",
        f"--config.init=my model: {copy} --config.init=gs://BUCKET/my model: gcloud storage cp "
        "--recursive 'my model' 'gs://BUCKET/my model'",
        f"--config.task.tokenizer=/v/vocab.txt: {copy} "
        "--config.task.tokenizer=gs://BUCKET/vocab.txt: gcloud storage cp --recursive /v/vocab.txt "
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
