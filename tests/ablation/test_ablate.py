"""`bert-jax ablate` with real runs: shared by processes, killed, resumed, and compared."""

import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import ablated
import pytest
from corpus import small_store
from processes import assert_same_bits
from runs import read_records

from bert_jax import cli
from bert_jax.data_pipeline.store.store import TokenStore

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("ablation"),  # none has a deadline, so other tests need not wait
]
LIMIT = 900  # seconds
RUNS = [f"{variant}/{seed}" for variant in ("token", "span") for seed in (0, 1, 2)]
STAGES = (": launch", "| compiling", "| step ", ": evaluate")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"), documents=60, held_out=20, repeat=True)


@pytest.fixture(scope="module")
def whole(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """An ablation that two commands made together, and what they printed."""
    folder = tmp_path_factory.mktemp("whole")
    words = ablated.words(ablated.write(folder), store, folder / "A")
    both = [ablated.start(words), ablated.start(words)]
    outputs = [process.communicate(timeout=LIMIT)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)
    assert cli.main(["ablate", "report", f"--workdir={folder / 'A'}"]) == 0
    return folder / "A", outputs


def test_two_commands_share_the_runs_and_make_none_twice(whole):
    workdir, outputs = whole
    for name in RUNS:
        assert len(read_records(workdir / "runs" / name, "start")) == 1, name
        begun = [output.count(f"{name}: launch") for output in outputs]
        measured = [output.count(f"{name}: evaluate") for output in outputs]
        assert (sum(begun), sum(measured)) == (1, 1), name
    assert all("launch" in output for output in outputs), "each made some"


def test_the_files_of_the_report_are_complete(whole):
    workdir, _ = whole
    data = json.loads((workdir / "report.json").read_text())
    assert sorted(data["runs"]) == sorted(RUNS)
    for each in data["runs"].values():
        assert each["measured"]["tokens_per_second"] > 0
        assert each["measured"]["peak_bytes"]["process"] > 100 << 20
        assert set(each["metrics"]) == {"own", "single/token:32", "single/span:32"}
    page = (workdir / "report.html").read_text()
    assert "While training" in page
    assert "6 of 6 runs trained and measured" in page


def test_a_variant_without_changes_has_the_bits_of_pretrain(whole, store, tmp_path, capsys):
    """And so has every command that the plan prints."""
    workdir, _ = whole
    words = ablated.words(workdir.parent / "ablation.py", store, workdir, "--plan", "--commands")
    capsys.readouterr()
    assert cli.main(words) == 0
    first = capsys.readouterr().out.splitlines()[0]
    typed = first.replace(str(workdir / "runs/token/0"), str(tmp_path / "run")).replace("'", "")
    command = [sys.executable, "-m", "bert_jax", *typed.split()[1:], "--cpu_devices=1"]
    subprocess.run(command, check=True, timeout=LIMIT, capture_output=True)
    assert_same_bits(tmp_path / "run", workdir / "runs/token/0")


SHORTENED = """
from bert_jax.configs.ablations import falling_mask_rate


def get_config():
    values = falling_mask_rate.get_config()
    values.base = "tiny"
    values.changes = {changes}
    return values
"""


@pytest.mark.nightly
def test_the_shipped_falling_mask_rate_shortened(store, tmp_path):
    """It masks more at first; both variants are measured alike, and only FLOPs differ."""
    changes = {k: v for k, v in ablated.CHANGES.items() if k != "data.pairing"}
    file = tmp_path / "falling.py"
    file.write_text(SHORTENED.format(changes=tuple((changes | {"phases[0].steps": 20}).items())))
    process = ablated.start(ablated.words(file, store, tmp_path / "A"))
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, output
    assert cli.main(["ablate", "report", f"--workdir={tmp_path / 'A'}"]) == 0
    data = json.loads((tmp_path / "A" / "report.json").read_text())
    assert len(data["runs"]) == 6
    assert {tuple(each["metrics"]) for each in data["runs"].values()} == {
        ("own", "nsp/token:32", "single/token:32")
    }
    for name in ("15 %/0", "30 to 15 %/0"):
        own = data["runs"][name]["metrics"]
        assert own["own"]["mlm/count"] == own["nsp/token:32"]["mlm/count"]


@pytest.mark.nightly
def test_the_same_configuration_gives_the_same_bits_and_no_difference(store, tmp_path, capsys):
    file = ablated.write(tmp_path, variants={"one": {}, "same": {}}, seeds=(0, 1, 2))
    file.write_text(file.read_text().replace('base="tiny"', 'base="tiny", null=True'))
    process = ablated.start(ablated.words(file, store, tmp_path / "A"))
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, output
    assert_same_bits(tmp_path / "A/runs/one/1", tmp_path / "A/runs/same/1")
    assert cli.main(["ablate", "report", f"--workdir={tmp_path / 'A'}"]) == 0
    assert "same: not distinguishable at this budget: between" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [3, 10])
def test_a_killed_ablation_ends_with_the_same_differences(kills, whole, store, tmp_path):
    """Each time at a random moment of a random stage of a run: it starts, compiles, trains, is
    measured. Two seeds of it; those of the whole one are copied."""
    workdir, _ = whole
    for seed, name in itertools.product((0, 1), ("token", "span")):
        run = Path("runs") / name / str(seed)
        shutil.copytree(workdir / run, tmp_path / "B" / run)
        shutil.copy(f"{workdir / run}.npz", f"{tmp_path / 'B' / run}.npz")
    first, second = (
        ablated.words(workdir.parent / "ablation.py", store, tmp_path / each, "--config.seeds=0,1")
        for each in "AB"
    )
    moments = random.Random(20)  # whose stages finish at most three of the four runs
    for _ in range(kills):
        stage, seconds = moments.choice(STAGES), moments.uniform(0, 2)
        assert killed(ablated.start(first), after=stage, seconds=seconds), "it ended before"
    for words in (first, second):
        process = ablated.start(words)
        output, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, output
        assert cli.main(["ablate", "report", words[4]]) == 0
    assert ": launch" not in output, "the copies count as runs"
    differences = [tmp_path / each / "differences.csv" for each in "AB"]
    assert differences[0].read_bytes() == differences[1].read_bytes()


def killed(process: subprocess.Popen, *, after: str, seconds: float) -> bool:
    """Kills a process some time after it has printed a text; False if it ended without it."""
    for line in process.stdout:
        if after in line:
            time.sleep(seconds)
            process.kill()
            process.communicate()
            return True
    return False


@pytest.mark.nightly
def test_a_run_whose_numbers_go_wrong_is_a_result(store, tmp_path, capsys):
    """It ends with 44, is named in the report, and the other runs are made."""
    wrong = {"optimizer.learning_rate": 1e30, "optimizer.clip_norm": 0.0,
             "optimizer.max_nonfinite_steps": 1}  # fmt: skip
    file = ablated.write(tmp_path, variants={"good": {}, "wrong": wrong}, seeds=(0, 1, 2))
    process = ablated.start(ablated.words(file, store, tmp_path / "A"))
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, output
    assert cli.main(["ablate", "report", f"--workdir={tmp_path / 'A'}"]) == 0
    out = capsys.readouterr().out
    assert "wrong/1 is left out of all means: ended with 44: " in out
    assert "wrong: no seed has ended in both" in out
