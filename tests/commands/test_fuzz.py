"""No input is a traceback or a signal: every failure is one line and an exit code of its own.

100 cases in this process; in `make nightly` 1,000, each a process of its own. A case is known by
its number; `PYTHONPATH=tests/support python tests/commands/test_fuzz.py 17` runs case 17 alone.
"""

import collections
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import fork_server
import pytest
from corpus import small_config, small_store
from exported import random_params
from fuzz_cases import KINDS, Case, Places, case

from bert_jax import cli, exit_codes
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.workdir import description as workdir

CODES = {
    exit_codes.DONE, exit_codes.FAILED, exit_codes.USAGE, exit_codes.STOPPED, exit_codes.LOST,
    exit_codes.NUMBERS, exit_codes.STORAGE,
}  # fmt: skip
LIMIT = 300  # seconds of a process; only ever waited out by a broken one


def make_places(folder: Path) -> Places:
    store = small_store(folder / "store")
    config = small_config(store)
    tokenizer = Tokenizer.load(store.tokenizer_path)
    out = folder / "export"
    export(random_params(config.model), config.model, tokenizer, out, card=Card())
    (out / "SHA256SUMS").unlink()
    run = folder / "run"
    run.mkdir()
    description = workdir.describe(config, store, [8], mesh={"data": 1}, device_kind="cpu")
    (run / "config.json").write_text(json.dumps(description))
    record = {"kind": "train", "step": 4, "phase": 0, "time": time.time(), "loss": 5.0,
              "mlm/loss": 4.0, "step_seconds": 1.0, "tokens_per_second": 9.0}  # fmt: skip
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    return Places(store.path, out, run, store.tokenizer_path)


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    return make_places(tmp_path_factory.mktemp("places"))


def wrong_with(code: int | None, err: str) -> str:
    """What is wrong with the end of a process; empty where nothing is."""
    lines = [line for line in err.splitlines() if line.strip()]
    if "Traceback" in err:
        return "a traceback"
    if code not in CODES:
        return f"exit code {code}"
    if code in (exit_codes.DONE, exit_codes.STOPPED):
        return ""
    # Lines of progress and warnings may come before it, and a refused change has a diff after it.
    said = [line for line in lines if line.startswith(("error: ", "usage: "))]
    if code == exit_codes.USAGE and not lines:  # the overview, on standard output
        return ""
    return "" if len(said) == 1 else f"{len(said)} lines that say why"


def failure(number: int, tried: Case, code: int | None, err: str) -> str:
    """A line and what was said, where a case ended as none may."""
    wrong = wrong_with(code, err)
    text = f"case {number} ({tried.kind}): {wrong}\n  {tried.words}\n{err[-3000:]}" if wrong else ""
    return text.encode("ascii", "backslashreplace").decode()  # a worker could not send surrogates


@pytest.mark.slow
def test_a_hundred_cases(places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    failures = []
    for number in range(100):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        tried = case(number, places, folder, alone=False)
        code, err = None, ""
        try:
            code = cli.main(tried.words)
        except BaseException as error:
            err = "".join(traceback.format_exception(error))
        err += capsys.readouterr().err
        failures += filter(None, [failure(number, tried, code, err)])
    assert not failures, "\n\n".join(failures)


def _process(words: list[str], err: str) -> None:
    """What a process of its own does; it was forked from one that has imported everything."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
    sys.exit(cli.main(words))


def run_process(number: int, places: Places, folder: Path) -> tuple[Case, int | None, str]:
    folder.mkdir()
    tried = case(number, places, folder, alone=True)
    err = folder.with_suffix(".err")
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_process, args=(tried.words, str(err)))
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        process.join()
        return tried, None, f"still running after {LIMIT} s"
    return tried, process.exitcode, err.read_text(errors="replace") if err.exists() else ""


@pytest.mark.nightly
@pytest.mark.processes
def test_a_thousand_processes(places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fork_server.preload(
        "bert_jax.api.model", "bert_jax.publish.export", "bert_jax.training.evaluate",
        "bert_jax.reporting.dataset", "bert_jax.reporting.status_text",
        "bert_jax.training.loop", "bert_jax.data_pipeline.store_build.build", "test_fuzz",
    )  # fmt: skip
    counts: collections.Counter = collections.Counter()
    failures = []
    count = int(os.environ.get("BERT_JAX_FUZZ", "1000"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ended = pool.map(lambda n: run_process(n, places, tmp_path / f"{n}"), range(count))
        for number, (tried, code, err) in enumerate(ended):
            counts[tried.kind, code] += 1
            failures += filter(None, [failure(number, tried, code, err)])
    with capsys.disabled():
        print()
        for kind in KINDS:
            ends = {code: n for (one, code), n in sorted(counts.items(), key=str) if one == kind}
            said = ", ".join(f"{n} with {code}" for code, n in ends.items())
            print(f"{kind}: {sum(ends.values())} cases ended, {said}")
    assert not failures, "\n\n".join(failures)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):
        Path("case").mkdir()
        tried = case(int(sys.argv[1]), make_places(Path(made)), Path(made, "case"), alone=True)
        print(tried.kind, tried.words)
        print("exit code", cli.main(tried.words))
