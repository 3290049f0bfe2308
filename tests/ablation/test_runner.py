"""Which runs `ablate run` makes, in which order, and how it ends; the runs are not made here."""

import contextlib
from pathlib import Path
from typing import Any

import ablated
import pytest
from corpus import small_store

from bert_jax.ablation import run as runner
from bert_jax.ablation import spec, state
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.state import RunState
from bert_jax.config.config_files import execute
from bert_jax.config.serialization import plain
from bert_jax.errors import UserError
from bert_jax.storage.locks import FileLock


class Recorded(runner.Runner):
    """Records the commands; each succeeds, but for those of runs with another exit code."""

    def __init__(self, *args: Any, codes: dict[str, int] | None = None, **options: Any):
        super().__init__(*args, **options)
        self.commands: list[tuple[str, str]] = []
        self.codes, self.states = codes or {}, dict[str, str]()

    def _call(self, run: spec.Run, words: list[str]) -> int:
        self.commands.append((run.name, words[0]))
        code = self.codes.get(run.name, 0)
        if not code:
            self.states[run.name] = "trained" if words[0] == "launch" else "measured"
        return code


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    store = small_store(tmp_path / "store")
    file = ablated.write(tmp_path)
    ablation = spec.parse_ablation(plain(execute(file)) | {"store": str(store.path)})

    def make(**options: Any) -> Recorded:
        made = Recorded(ablation, AblationDir.open(tmp_path / "A"), spec.runs(ablation), **options)
        found = lambda _, run, forms: RunState(made.states.get(run.name, "waiting"), 0)  # noqa: E731
        monkeypatch.setattr(state, "state_of", found)
        return made

    return make


def test_each_run_is_trained_and_measured_once_seed_by_seed(made):
    all_runs = made()
    assert all_runs.run() == 0
    names = [f"{variant}/{seed}" for seed in (0, 1, 2) for variant in ("token", "span")]
    steps = [(name, word) for name in names for word in ("launch", "evaluate")]
    assert all_runs.commands == steps
    at_once = made(at_once=3)
    assert at_once.run() == 0
    assert sorted(at_once.commands) == sorted(steps)


def test_what_is_done_is_not_made_again(made):
    some = made()
    some.states = {"token/0": "measured", "span/0": "trained", "token/1": "diverged"}
    assert some.run() == 0
    assert some.commands[0] == ("span/0", "evaluate")
    assert not [name for name, _ in some.commands if name in ("token/0", "token/1")]


def test_a_run_that_fails_ends_the_command_with_its_code_and_not_the_others(made, capsys):
    failing = made(codes={"span/0": 45, "token/1": 44})
    assert failing.run() == 45
    assert failing.states["span/2"] == "measured"
    assert ("token/1", "evaluate") not in failing.commands
    assert made(codes={"token/1": 44}).run() == 0  # the report names it


def test_a_run_that_another_process_makes_is_made_when_that_one_has_ended(made, monkeypatch):
    waiting = made()
    path = Path(str(waiting._workdir.lock(waiting._left[0])))
    path.parent.mkdir(parents=True)
    with contextlib.ExitStack() as other_process:
        other_process.enter_context(FileLock(path)).acquire()
        pauses = []

        def pause(seconds: float) -> None:
            pauses.append(len(waiting.commands))
            if len(waiting.states) == 5:
                other_process.close()
                waiting.states["token/0"] = "measured"  # by the other process

        monkeypatch.setattr(runner.time, "sleep", pause)
        assert waiting.run() == 0
    assert pauses
    assert not [name for name, _ in waiting.commands if name == "token/0"]


def test_a_folder_that_cannot_be_written_is_one_line(made, tmp_path):
    """Here a file is in the way; a full disk gives the same error."""
    (tmp_path / "A").mkdir()
    (tmp_path / "A/runs").write_text("")
    with pytest.raises(UserError, match=r"runs/token/0\.lock: cannot be written \("):
        made().run()


def test_values_that_cannot_be_read_are_not_replaced(made):
    some = made()
    some.states = {"token/0": "damaged"}
    with pytest.raises(UserError, match=r"^token/0: "):
        some.run()
    assert "token/0" not in [name for name, _ in some.commands]


def test_the_shares_of_the_time_add_up(made, monkeypatch):
    """Waiting for a run of another process is none of it."""
    now = iter(range(10_000))
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(now))
    some = made()
    with some._spending("scheduling"):  # 7 ticks in all
        with some._spending("pretrain"):
            pass
        with some._spending("evaluate"):
            pass
        with some._spending(None):
            pass
    assert some.shares() == "0:00:06 of 1 worker: pretrain 16.7%, evaluate 16.7%, scheduling 66.7%"
    assert made().shares().startswith("0:00:00 of 1 worker")


def test_each_process_has_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 7})
    assert runner._shares(2) == [{0, 2, 7}, {1, 5}]
    assert runner._shares(1) == [{0, 1, 2, 5, 7}]
    assert runner._shares(9) == [{0, 1, 2, 5, 7}] * 9
