"""What every test shares: eight CPU devices, reproducible property tests, the real text."""

import gc
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Compiling is most of the time of the tests, running is little: LLVM need not try hard.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        # Eight devices on few busy cores: one may wait for another longer than the usual 40 s.
        "--xla_cpu_collective_call_terminate_timeout_seconds=300",
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",  # see sharding.use_cpu_devices
    )
)

# xdist gives its workers a terminal's size, and rich would keep it whatever a test sets.
os.environ["COLUMNS"] = os.environ["LINES"] = ""

import jax  # reads XLA_FLAGS
import numba
import pytest
from hypothesis import settings

from bert_jax.runtime import compile_cache
from bert_jax.runtime.log import configure_logging
from bert_jax.storage.cache_dir import cache_dir

# Test files that take longest, in this order.
LONGEST = ("test_train", "test_masking_modes", "test_checkpoint", "test_parity", "test_step")

# The CPU even where an accelerator is present; tests marked `gpu` run with "cuda".
PLATFORM = os.environ.get("BERT_JAX_TEST_PLATFORM", "cpu")

STARTED = time.monotonic()

# Before any test starts a backend.
jax.config.update("jax_platforms", PLATFORM)
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

gc.disable()  # until all tests are collected, which makes no garbage
configure_logging()  # as the command line does

# Compiled loops make the first example of a property slow, so no deadline; the same examples in
# every automated run, new ones on a developer's machine.
settings.register_profile("bert_jax", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("bert_jax")


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Plans of this session; compiled programs and loops of all sessions of this user.

    Plans are a product of the code under test, so each session makes its own. What XLA and numba
    compile is keyed by what they compile, and compiling is most of the time of the tests.
    """
    kept = cache_dir() / "tests"
    cache = tmp_path_factory.mktemp("cache")
    (kept / "compiled").mkdir(mode=0o700, parents=True, exist_ok=True)
    (cache / "compiled").symlink_to(kept / "compiled")
    os.environ["BERT_JAX_CACHE"] = str(cache)
    os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(kept)
    # It would make the folder, another one in every session, a part of what a program is known by.
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    compile_cache.use()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers: a file's tests in one of them; those with processes one at a time.

    Tests with processes come first, because they are the longest chain. Those with an `xdist_group`
    of their own do not wait for them and follow, and then the longest files, so that no worker is
    left with one at the end. xdist gives a worker whose group has one test the next group, too, so
    the longest chain must not be the next one. With one worker: in the order asked for.
    """
    if not config.getoption("loadgroup", False):
        return

    def rank(item: pytest.Item) -> int:
        return LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)

    own = {item for item in items if item.get_closest_marker("xdist_group")}
    alone = {item for item in items if item.get_closest_marker("processes")} - own
    for item in items:
        if item not in own:
            group = "processes" if item in alone else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (item not in alone, item not in own, rank(item)))


def pytest_addoption(parser: pytest.Parser) -> None:
    says = "skip the tests that have not begun after this many minutes"
    parser.addoption("--minutes", type=float, default=float("inf"), help=says)


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("minutes")
    if time.monotonic() - STARTED > 60 * minutes:
        pytest.skip(f"not begun within {minutes:g} minutes on this machine")
    if PLATFORM == "cpu" and item.get_closest_marker("gpu"):
        pytest.skip("needs a GPU: BERT_JAX_TEST_PLATFORM=cuda")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Frees the compiled programs of a file, which would otherwise add up to gigabytes."""
    if nextitem is None or nextitem.path != item.path:
        jax.clear_caches()
        gc.collect()


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest-xdist 3.8 marks groups in the ids of tests, and pytest 9.2 ignores that silently."""
    # Else the collector of cycles walks through all modules and tests, again and again.
    gc.freeze()
    gc.enable()
    grouped = all("@" in item.nodeid for item in session.items)
    if session.config.getoption("loadgroup", False) and not grouped:
        raise pytest.UsageError("this pytest-xdist cannot group tests with this pytest")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says which gcloud the tests of launches called."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    if any("test_tpu_cloud" in report.nodeid for report in reports):
        import gcloud_transcripts

        terminalreporter.write_line(f"gcloud: {gcloud_transcripts.which()}")


@pytest.fixture(autouse=True)
def _processes_are_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline must not fail because two tests with processes share the machine."""
    if not request.node.get_closest_marker("processes"):
        start = subprocess.Popen.__init__

        def refuse(self: subprocess.Popen, words: object, *args: Any, **more: Any) -> None:
            if "python" in str(words) or "bert" in str(words):  # not one that a library starts
                pytest.fail(f"{request.node.nodeid} starts a process: mark it `processes`")
            start(self, words, *args, **more)

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(scope="session", autouse=True)
def _step_functions_are_shared() -> Iterator[None]:
    """Runs in this process that train the same model do so with the same compiled step."""
    from shared_steps import shared_step_functions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.training.step.make_step_functions", shared_step_functions)
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real text and vocabularies: wikipedia/*.tar.xz, books/*.tar.xz, vocab/*.txt."""
    folder = os.environ.get("BERT_JAX_REAL_DATA")
    if not folder:
        pytest.skip("BERT_JAX_REAL_DATA names no folder of real text")
    if not Path(folder).is_dir():
        pytest.fail(f"BERT_JAX_REAL_DATA={folder} is not a folder")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def real_wiki_files(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The first 3 files (about 1 MB each) as WikiExtractor wrote them, in a folder of their own."""
    return _unpack_first(real_data / "wikipedia", 3, tmp_path_factory.mktemp("wiki"))


@pytest.fixture(scope="session")
def real_books(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The first 4 books, each Author/Title.md, below a folder of their own."""
    return _unpack_first(real_data / "books", 4, tmp_path_factory.mktemp("books"))


def _unpack_first(folder: Path, count: int, destination: Path) -> list[Path]:
    """Unpack the first `count` files of the only archive in `folder`; their paths, in its order."""
    (archive,) = folder.glob("*.tar.xz")
    unpacked = []
    with tarfile.open(archive, "r:xz") as members:
        for member in members:  # in order: the rest of the archive is never read
            if member.isfile():
                members.extract(member, destination, filter="data")
                unpacked.append(destination / member.name)
            if len(unpacked) == count:
                return unpacked
    pytest.fail(f"{archive} holds {len(unpacked)} files, expected at least {count}")


@pytest.fixture(scope="session")
def tokenizer():
    """A small WordPiece tokenizer of many scripts."""
    from exported import TEXTS

    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

    return Tokenizer.train(TEXTS[:7], 400, lowercase=True)


@pytest.fixture(scope="session")
def disturbed(tmp_path_factory):
    """The configuration of the runs that are disturbed: 16 steps, all held-out text after 8."""
    import dataclasses

    from corpus import small_store
    from processes import deep_config

    store = small_store(tmp_path_factory.mktemp("store"), documents=120, held_out=60)
    config = deep_config(store, steps=16)
    return dataclasses.replace(
        config, evaluation=dataclasses.replace(config.evaluation, every_steps=8, batches=0)
    )


@pytest.fixture(scope="session")
def undisturbed(disturbed, tmp_path_factory) -> Path:
    """The workdir of such a run to which nothing happened."""
    from processes import run

    folder = tmp_path_factory.mktemp("undisturbed")
    run(disturbed, folder / "run", folder, processes=2)
    return folder / "run"


@pytest.fixture
def exported(tokenizer, tmp_path):
    """(folder, model configuration, parameters) of a model exported after 7 steps."""
    import dataclasses

    from exported import random_params
    from small import model_config

    from bert_jax.publish.export import export
    from bert_jax.publish.model_card import Card

    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    params = random_params(config)
    export(params, config, tokenizer, tmp_path / "out", card=Card(step=7))
    return tmp_path / "out", config, params
