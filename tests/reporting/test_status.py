"""`bert-jax status`: the state of a run, from its folder alone."""

import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from logged_runs import SCALARS, config_of_two_phases, folder_of_a_run

from bert_jax import cli
from bert_jax.checkpoint.manager import read_own_meta
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.metrics import flops, run_records
from bert_jax.reporting import plots
from bert_jax.reporting.status import as_json, read_status
from bert_jax.reporting.status_text import names, render
from bert_jax.workdir import description, lock
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    return config_of_two_phases(tmp_path_factory.mktemp("store"))


def test_the_page_has_the_curves_beside_the_baselines(config, tmp_path, capsys):
    run, page = folder_of_a_run(tmp_path / "run", config, 30), tmp_path / "run.html"
    assert cli.main(["status", f"--workdir={run}", f"--html={page}"]) == 0
    assert "step 30 of 100" in capsys.readouterr().out
    text = page.read_text()
    # Loss and accuracy of two objectives, tokens per second, goodput.
    assert text.count("<svg") == 6
    assert "left neighbour (bigram)" in text
    assert text.index("convert export") < text.index("[MASK]") < text.index("evaluate --workdir")
    assert cli.main(["status", f"--workdir={run}", f"--html={tmp_path}/no/run.html"]) == 1
    assert "no/run.html: no such folder" in capsys.readouterr().err


def test_several_runs_are_shown(config, tmp_path, capsys):
    one, two = (
        folder_of_a_run(tmp_path / name, config, 10 * n) for n, name in ((1, "a"), (2, "b"))
    )
    flags = ["status", f"--workdir={one}", f"--workdir={two}"]
    assert cli.main(flags) == 0
    said = capsys.readouterr().out
    assert said.index("step 10 of 100") < said.index("step 20 of 100")
    assert cli.main([*flags, "--json"]) == 0
    assert [run["step"] for run in json.loads(capsys.readouterr().out)] == [10, 20]


def test_the_page_of_several_runs_has_their_curves_over_each_other(config, tmp_path, capsys):
    """A name may hold anything; of two folders of one name the folders above, too."""
    runs = [
        folder_of_a_run(tmp_path / name, config, steps)
        for name, steps in (("one/<b>$x$", 20), ("two/<b>$x$", 30), ("c", 10))
    ]
    hidden = {"before": "the <i>", "word": "sea", "after": " was calm"}
    with (runs[2] / "metrics.jsonl").open("a") as log:
        log.write(run_records.line("start", 0, 0, {"hidden": [hidden], "devices": 4}))
        for step in range(10):
            guesses = [[["sea" if step == 9 else "land", 0.25]]]
            log.write(run_records.line("fills", step, 0, {"guesses": guesses}))
    page = tmp_path / "page.html"
    flags = [f"--workdir={run}" for run in runs]
    assert cli.main(["status", *flags, f"--html={page}"]) == 0
    said, text = capsys.readouterr().out, page.read_text()
    assert "sea 25%" in said
    assert "[MASK] was calm" in said
    assert said.index(" device hours ") < said.index("step 20 of 100")
    assert "3 runs: one/&lt;b&gt;$x$, two/&lt;b&gt;$x$, c" in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "held out from training, the same at every step." in text
    # Losses and accuracies of two objectives, and the speed, of all runs.
    assert text.count("<svg") == 5
    assert '<td class="text">the &lt;i&gt;<span class="masked">sea</span> was calm</td>' in text
    assert '<span class="right">sea 25%</span>' in text
    shown = [int(step) for step in re.findall(r"<th[^>]*>step (\d+)</th>", text)]
    assert shown == [0, 1, 3, 4, 6, 7, 9]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/x/a", "/x/b/"], ["a", "b"]),
        (["gs://k/counted start/0", "/x/c"], ["counted start/0", "c"]),
        (["/x/p/a", "/y/p/a", "/y/q/a"], ["x/p/a", "y/p/a", "q/a"]),
        (["a", "b/a"], ["a", "b/a"]),
        (["/1"], ["/1"]),
    ],
)
def test_runs_have_the_shortest_names_that_tell_them_apart(config, tmp_path, paths, expected):
    run = read_status(folder_of_a_run(tmp_path / "run", config, 10))
    runs = [dataclasses.replace(run, workdir=path) for path in paths]
    assert names(runs) == expected


def test_the_cost_is_that_of_all_starts(config, tmp_path):
    run = folder_of_a_run(tmp_path / "run", config, 0)
    records = [
        ("start", 0, 0.0, {"devices": 4}), ("stopped", 10, 3600.0, {}),
        ("start", 10, 9000.0, {"devices": 8}), ("train", 20, 10800.0, {"padding": 0.25}),
    ]  # fmt: skip
    with (run / "metrics.jsonl").open("w") as log:
        for kind, step, seconds, values in records:
            record = json.loads(run_records.line(kind, step, 0, values))
            log.write(json.dumps({**record, "time": 1e9 + seconds}) + "\n")
    status = read_status(run)
    assert status.device_hours == 1 * 4 + 0.5 * 8
    phase = config.phases[0]
    assert status.tokens == 0.75 * 20 * phase.batch_size * phase.row_tokens
    assert "cost so far: 8.00 device hours, about 1,920 tokens" in render(status)


def test_ticks_of_steps_are_whole_numbers():
    svg = plots.curves({"loss": ([20, 40], [3.0, 2.0])}, ylabel="loss")
    shown = re.findall(r"<!-- ([\d.]+) -->", svg[: svg.index("<!-- step -->")])
    assert {"20", "40"} <= {*shown}
    assert all(tick.isdecimal() for tick in shown)


def test_a_running_run(config, tmp_path):
    status = read_status(folder_of_a_run(tmp_path / "run", config, 70))
    assert (status.step, status.total_steps, status.working, status.finished) == (
        70, 100, True, False,
    )  # fmt: skip
    assert (status.phase, status.phases, status.phase_step, status.phase_steps) == (1, 2, 10, 40)
    assert status.epochs == [60 * 8 / 80, 10 * 8 / 50]
    assert status.seconds_left == pytest.approx(30 * 0.5)  # a step of this phase takes 0.5 s
    kept = {one.step: one.kept for one in status.checkpoints}
    assert kept == {
        20: ["best of phase 1"],
        40: ["every 40 steps"],
        60: ["newest 2", "end of phase 1"],
        70: ["newest", "best of phase 2"],
    }
    assert all(0 < one.bytes < status.bytes for one in status.checkpoints)
    text = render(status)
    for said in (
        "step 70 of 100 (70.0%)", "phase 2 of 2: step 10 of 40", "running: ", "0:00:15 left",
        "MLM 4.250", "MLM loss 4.250 (unigram 4.500)", "source alone 55.0%", "best of phase 1",
    ):  # fmt: skip
        assert said in text


def test_time_left_weighs_the_phases_to_come(config, tmp_path):
    status = read_status(folder_of_a_run(tmp_path / "run", config, 60))
    assert (status.phase, status.phase_step) == (0, 60)
    short, long = (flops.step_flops(config, phase) for phase in config.phases)
    assert long > 1.9 * short
    assert status.seconds_left == pytest.approx(40 * 0.5 * long / short)


@pytest.mark.slow
def test_a_stopped_run_and_a_finished_one(config, tmp_path):
    rest = read_status(folder_of_a_run(tmp_path / "rest", config, 30, age=7200))
    assert not rest.working
    assert "not running: last record 2 h ago" in render(rest)
    assert "2 h ago" in render(rest)
    done = read_status(folder_of_a_run(tmp_path / "done", config, 100, age=7200))
    assert (done.finished, done.working, done.seconds_left) == (True, False, 0.0)
    assert "finished" in render(done)
    assert {one.step for one in done.checkpoints} == {20, 40, 60, 80, 90, 100}


def test_a_run_that_has_just_begun(config, tmp_path):
    status = read_status(folder_of_a_run(tmp_path / "run", config, 0))
    assert (status.step, status.age, status.checkpoints) == (0, None, [])
    assert "nothing recorded yet" in render(status)


def test_repeated_steps_count_from_the_restart(config, tmp_path):
    """After a crash between 30 and 40 the run is at 30 again, even if later steps were logged."""
    run = folder_of_a_run(tmp_path / "run", config, 30)
    with (run / "metrics.jsonl").open("a") as log:
        for step in (35, 31):
            log.write(run_records.line("train", step, 0, {**SCALARS, "step_seconds": 0.5}))
    assert read_status(run).step == 31


@pytest.mark.processes
def test_the_command_needs_no_jax(config, tmp_path, capsys):
    run = folder_of_a_run(tmp_path / "run", config, 20)
    script = (
        f"import sys; from bert_jax import cli; code = cli.main(['status', '--workdir={run}', "
        "'--json']); heavy = [m for m in ('jax', 'orbax', 'numba', 'optax') if m in sys.modules]; "
        "sys.exit(str(heavy) if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 20
    assert cli.main(["status", f"--workdir={run}"]) == 0
    assert "step 20 of 100" in capsys.readouterr().out


@pytest.mark.parametrize(("task", "command"), [("sst2", "finetune"), ("", "pretrain")])
def test_a_message_names_the_command_of_the_run(task, command, config, tmp_path):
    config = dataclasses.replace(config, task=dataclasses.replace(config.task, name=task))
    run = folder_of_a_run(tmp_path / "run", config, 10, age=1e6)
    assert f"left; run the same `bert-jax {command}` command again" in render(read_status(run))
    known = description.read_description(Workdir.open(run))
    known["data"]["train"] = "b"
    with pytest.raises(UserError, match=f"another checkpoint. `bert-jax {command}` moves it"):
        read_own_meta(Workdir.open(run), 10, known)
    known["data"]["rows_per_epoch"] = []
    (run / "config.json").write_text(json.dumps(known))
    with pytest.raises(UserError, match=f"missing; `bert-jax {command}` with the run's own flags"):
        read_status(run)


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys):
    with pytest.raises(UserError, match="not the workdir of a run"):
        read_status(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert cli.main(["status", f"--workdir={tmp_path}"]) == 1
    assert (
        "give the --workdir that was given to `bert-jax pretrain` or `finetune`"
        in capsys.readouterr().err
    )


def add(run: Path, kind: str, step: int, *, age: float = 0.0, **values: object) -> None:
    """Appends a record, `age` seconds old."""
    record = json.loads(run_records.line(kind, step, 0, values))
    with (run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({**record, "time": time.time() - age}) + "\n")


def test_a_run_with_failures(config, tmp_path):
    """Killed after 30, stopped at 40 with one checkpoint in quarantine, running again."""
    run = folder_of_a_run(tmp_path / "run", config, 50)
    (run / "metrics.jsonl").unlink()
    hosts = {"processes": 2, "hosts": ["host-0", "host-1"]}
    add(run, "start", 0, age=1000, seconds={"start": 10.0, "compile": 20.0}, **hosts)
    add(run, "goodput", 30, age=900, seconds={"start": 10.0, "compile": 20.0, "step": 90.0})
    add(run, "quarantined", 30, age=800, reason="params/x differs")
    add(run, "start", 20, age=790, seconds={}, **hosts)
    add(run, "skipped", 33, age=750)
    add(run, "stopped", 40, age=700, reason="SIGTERM on host-1", code=42, seconds={"step": 80.0})
    add(run, "start", 40, age=100, seconds={}, **hosts)
    times = {"hosts/own": [0.1, 0.4], "hosts/data_wait": [0.0, 0.3], "hosts/stragglers": ["x late"]}
    add(run, "train", 50, **SCALARS, step_seconds=0.5, tokens_per_second=1.0, **times)
    (run / "quarantine" / "30").mkdir(parents=True)
    status = read_status(run)
    assert [(one.first, one.last, one.processes, one.ended) for one in status.attempts] == [
        (0, 30, 2, "killed"), (20, 40, 2, "stopped: SIGTERM on host-1"), (40, 50, 2, "running"),
    ]  # fmt: skip
    assert status.skipped == [33]
    assert [(one.folder, one.reason) for one in status.quarantined] == [("30", "params/x differs")]
    assert [(one.host, one.own, one.data_wait) for one in status.hosts] == [
        ("host-0", 0.1, 0.0), ("host-1", 0.4, 0.3),
    ]  # fmt: skip
    spent = status.goodput.seconds
    assert spent["repeated"] == pytest.approx(30.0)
    assert spent["compile"] == pytest.approx(20.0)
    assert spent["down"] == pytest.approx(110 + 600, abs=1)
    assert status.goodput.wall == pytest.approx(1030, abs=1)
    text = render(status)
    for said in (
        "1 step skipped, loss or gradient not finite: 33 (`bert-jax data batch",
        "x late", "host-1", "goodput ", "steps lost in a crash and repeated", "3 attempts:",
        "0 to 30  killed", "20 to 40  stopped: SIGTERM on host-1", "40 to 50  running",
        "in quarantine: 30 (params/x differs)",
    ):  # fmt: skip
        assert said in text, said
    fields = json.loads(as_json(status))
    assert fields["goodput"]["seconds"]["repeated"] == pytest.approx(30.0)
    assert fields["goodput"]["share"] == pytest.approx(status.goodput.share)


@pytest.mark.processes
def test_a_killed_trainer_is_known_at_once(config, tmp_path):
    """Its last record is new, but the lock was released with the process."""
    run = folder_of_a_run(tmp_path / "run", config, 30)
    script = (
        f"import time; from bert_jax.workdir.lock import lock as held\n"
        f"with held({str(Workdir.open(run).lock)!r}): print('held', flush=True); time.sleep(600)"
    )
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert trainer.stdout.readline() == "held\n"
        assert read_status(run).working
    finally:
        trainer.kill()
        trainer.communicate(timeout=60)
    status = read_status(run)
    assert not status.working
    assert status.age < 60
    assert "not running: last record " in render(status)
    assert render(status).endswith("a restart resumes from step 30")
    assert [one.ended for one in status.attempts] == ["killed"]


def test_a_trainer_that_has_gone_quiet_is_told_from_one_that_is_gone(config, tmp_path):
    run = folder_of_a_run(tmp_path / "run", config, 30, age=7200)
    with lock.lock(Workdir.open(run).lock):
        status = read_status(run)
        assert (status.working, status.late) == (True, True)
        assert "running, but last record 2 h ago: " in render(status)
    assert (read_status(run).working, read_status(run).late) == (False, False)


def test_a_damaged_checkpoint_is_named_and_not_what_a_restart_uses(config, tmp_path):
    run = folder_of_a_run(tmp_path / "run", config, 30)
    meta = run / "checkpoints" / "30" / "meta" / "metadata"
    (run / "checkpoints" / "40").mkdir()
    meta.write_text(meta.read_text()[:40])
    status = read_status(run)
    assert {one.step: bool(one.problem) for one in status.checkpoints} == {
        20: False, 30: True, 40: True,
    }  # fmt: skip
    assert status.restart_from == 20
    assert f"not usable  {status.checkpoints[1].problem}" in render(status)
    meta.write_text('{"format_version": 99}')
    assert "format" in read_status(run).checkpoints[1].problem


def test_damaged_files_are_one_line_or_none(config, tmp_path, capsys):
    """JSON files truncated, with flipped bits or other values: a status, or a one-line error."""
    run = folder_of_a_run(tmp_path / "run", config, 20)
    hosts = {"processes": 2, "hosts": ["a", "b"], "seconds": {"step": 1.0}}
    add(run, "start", 20, **hosts)
    add(run, "train", 20, **SCALARS, step_seconds=0.5, tokens_per_second=1.0)
    add(run, "save_failed", 30, reason="no space left")
    add(run, "stopped", 20, reason="SIGTERM", code=42)
    files = [run / n for n in ("config.json", "metrics.jsonl", "checkpoints/20/meta/metadata")]
    whole = {path: path.read_bytes() for path in files}
    rng, codes = np.random.default_rng(0), set()
    for _ in range(150):
        path = files[rng.integers(len(files))]
        content = bytearray(whole[path])
        where = int(rng.integers(len(content)))
        match rng.integers(5):
            case 0:
                content[where:] = b""
            case 1:
                content[where] ^= 1 << int(rng.integers(8))
            case 2:
                content[where : where + 20] = rng.bytes(20)
            case 3:
                content = rng.choice([b"null", b"[]", b"5", b"{}", b"\xff", b'{"kind": 1}'])
            case 4:
                parts = re.split(rb"(?<=: )([^,{}\[\]]+)", whole[path])
                others = [b"null", b"[]", b"{}", b"-1", b"1e400", b"10000000000", b'"x"', b"true"]
                parts[2 * rng.integers((len(parts) - 1) // 2) + 1] = rng.choice(others)
                content = b"".join(parts)
        path.write_bytes(content)
        code = cli.main(["status", f"--workdir={run}"])
        out, err = capsys.readouterr()
        assert (code, err.count("\n")) in ((0, 0), (1, 1)), (path, content, err)
        assert bool(out) == (code == 0)
        assert cli.main(["status", f"--workdir={run}", "--json"]) == code
        out = capsys.readouterr().out
        if code == 0:
            json.loads(out, parse_constant=lambda name: pytest.fail(name))
        codes.add(code)
        path.write_bytes(whole[path])
    assert codes == {0, 1}


def test_figures_that_are_not_numbers_are_shown_as_such(config, tmp_path):
    run = folder_of_a_run(tmp_path / "run", config, 20)
    add(
        run, "train", 25, **{**SCALARS, "loss": float("nan")}, step_seconds=0.5, tokens_per_second=1
    )
    assert "loss nan" in render(read_status(run))
    assert json.loads(as_json(read_status(run)))["train"]["loss"] is None
    add(run, "train", 26)
    assert "step 26 (0 s ago): its record in metrics.jsonl is damaged" in render(read_status(run))


def test_figures_of_steps_that_a_restart_undid_are_left_out(config, tmp_path):
    """A skipped step has its number from 0: that of 20 would be update 21."""
    run = folder_of_a_run(tmp_path / "run", config, 20)
    for step in (18, 20, 25):
        add(run, "skipped", step)
    add(run, "train", 30, **SCALARS, step_seconds=0.5, tokens_per_second=1.0)
    add(run, "eval", 30, **SCALARS)
    add(run, "save_failed", 30, reason="no space left")
    assert read_status(run).skipped == [18, 20, 25]
    add(run, "start", 20, seconds={})
    status = read_status(run)
    assert (status.step, status.train["step"], status.eval["step"]) == (20, 20, 20)
    assert (status.skipped, status.save_failed) == ([18], None)


def test_a_failed_save_is_reported_until_one_succeeds(config, tmp_path):
    run = folder_of_a_run(tmp_path / "run", config, 20)
    add(run, "save_failed", 30, reason="no space left")
    assert "checkpoint save failed at step 30: no space left" in render(read_status(run))
    again = folder_of_a_run(tmp_path / "again", config, 30)
    add(again, "save_failed", 30, reason="no space left")
    assert "save failed" not in render(read_status(again))
