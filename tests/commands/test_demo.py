"""The demo, shortened: the whole way in one process tree, interrupted and taken up again."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from signals import with_signals

import bert_jax
from bert_jax.storage.host_name import host_name

pytestmark = [pytest.mark.processes, pytest.mark.slow]
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from bert_jax.cli import main; sys.exit(main())",
    "demo",
)
WORDS = ("the cat", "a dog", "my aunt", "one bird", "the wind", "a child", "some sailor", "nobody")
VERBS = ("sees", "follows", "forgets", "carries", "answers", "paints", "remembers", "finds")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Twelve short books of two chapters, in a folder with a space in its name."""
    folder = tmp_path / "my books"
    folder.mkdir()
    for book in range(12):
        lines = []
        for chapter in range(2):
            lines.append(f"CHAPTER {'I' * (chapter + 1)}\n")
            for i in range(40):
                k = book * 7 + chapter * 3 + i
                subject, verb, thing = WORDS[k % 8], VERBS[(k // 8) % 8], WORDS[(k * 5 + 1) % 8]
                lines.append(f"{subject.capitalize()} {verb} {thing} in the old house again.\n")
        (folder / f"{book}.txt").write_text("\n".join(lines))
    return folder


def demo(workdir: Path, text: Path | None, steps: int) -> list[str]:
    data = [f"--data={text}"] if text else []
    return [*COMMAND, f"--workdir={workdir}", f"--steps={steps}", *data]


@pytest.mark.nightly
def test_interrupted_while_training_it_goes_on_to_the_report(text, tmp_path):
    workdir = tmp_path / "demo"
    process = subprocess.Popen(
        with_signals(demo(workdir, text, 2000)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    log = workdir / "run" / "metrics.jsonl"
    while not (log.exists() and '"train"' in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 42, out + err
    step = max(int(p.name) for p in (workdir / "run" / "checkpoints").iterdir())

    done = subprocess.run(
        demo(workdir, text, step + 5), capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resumes from step {step}" in done.stdout
    report = (workdir / "report.html").read_text()
    assert report.count("<svg") == 8
    assert report.count('class="masked"') == 2 * 10  # with guesses, and over the steps
    headline, masked, following = map(report.index, ('class="headline"', 'class="masked"', "<svg"))
    assert headline < masked < report.index("What to do next") < following
    assert f"<th>step 0</th><th>step {step + 5}</th>" in report
    assert "Nearest words" in report
    assert "hidden words" in report
    assert host_name() in report
    (fills,) = bert_jax.load(workdir / "export").fill_mask("the [MASK] in the old house")
    assert len(fills) == 5

    again = subprocess.run(
        demo(workdir, text, step + 5), capture_output=True, text=True, check=False, timeout=600
    )
    assert again.returncode == 0, again.stderr
    assert "reusing it" in again.stderr  # the store
    run_next_commands(again.stdout)
    other = subprocess.run(
        demo(workdir, None, step + 5), capture_output=True, text=True, check=False, timeout=600
    )
    assert other.returncode == 1
    assert "holds the demo of other text" in other.stderr.splitlines()[-1]


def run_next_commands(out: str) -> None:
    """Types the commands that the demo printed; the larger model for one step."""
    lines = [line for line in out.partition("\nNext:")[2].splitlines() if line]
    commands = [line for line in lines if not line.endswith(":")]
    assert len(lines) == 6, out
    assert len(commands) == 3, out
    for command in commands:
        one_step = (
            " --config.phases[0].steps=1 --config.optimizer.warmup_steps=1"
            if "pretrain" in command
            else ""
        )
        done = subprocess.run(
            ["bash", "-c", command + one_step], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("nothing", None, "empty folder"),
        ("empty", "", "with text"),
        ("short", "Just one line.\n", "error: "),
    ],
)
def test_text_that_cannot_be_used_is_one_line(name, content, line, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    if content is not None:
        (folder / "a.txt").write_text(content)
    done = subprocess.run(
        demo(tmp_path / "demo", folder, 1), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert line in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
