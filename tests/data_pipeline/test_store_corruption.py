"""Random damage to token stores and cached plans: a one-line error, or no effect."""

import dataclasses
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from corpus import small_store
from made_plans import make_plan
from store_corruptions import Touch, corrupt

from bert_jax import cli, exit_codes
from bert_jax.data_pipeline.plan.cache import Plans
from bert_jax.data_pipeline.plan.column_files import find
from bert_jax.data_pipeline.plan.plan import COLUMNS, Plan, PlanSpec
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store.manifest import ARRAYS, SPLITS
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

SPEC = PlanSpec(32, pairing="nsp", negative_pool="corpus")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("original") / "store")


@pytest.fixture(scope="module")
def real(real_wiki_files, real_data, tmp_path_factory) -> TokenStore:
    """A store of real text."""
    tokenizer = Tokenizer.load(real_data / "vocab" / "bert-base-uncased-vocab.txt")
    sources = [parse_source(f"wikiextractor:{real_wiki_files[0].parent}")]
    folder = tmp_path_factory.mktemp("real") / "store"
    return build_store(sources, tokenizer, folder, workers=1, progress=False)


@pytest.fixture(scope="module", autouse=True)
def _jax_is_in_use() -> None:
    """As in any program that has used it: `pretrain` starts it as a job of one only once."""
    jax.devices()


@pytest.fixture(autouse=True)
def unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that `Touch` writes when it is unpickled."""
    file = tmp_path / "unpickled"
    monkeypatch.setenv("BERT_JAX_TEST_UNPICKLED", str(file))
    return file


def content(store: TokenStore) -> list[object]:
    """All parts of a store that training uses."""
    arrays = [getattr(getattr(store, split), array) for split in SPLITS for array in ARRAYS]
    return [
        *((a.dtype, a.shape, a.tobytes()) for a in arrays),
        *(store.sources, store.languages, store.vocab_size, store.special),
        *(store.train.digest, store.held_out.digest, store.tokenizer_digest),
        store.tokenizer_path.read_bytes(),
    ]


def refusal(path: Path, *, verify: bool) -> tuple[str, TokenStore | None]:
    """Returns the error line of opening the store, or the store."""
    try:
        return "", open_store(path, verify=verify)
    except UserError as error:
        return str(error), None


def check(original: TokenStore, tmp_path: Path, number: int, capsys) -> None:
    path = shutil.copytree(original.path, tmp_path / "store")
    did, signed = corrupt(path, number)
    message, opened = refusal(path, verify=True)
    assert "\n" not in message, did
    if opened is None:
        assert str(path) in message, did
    else:  # what is signed anew is another store, which may be a good one
        assert signed or content(opened) == content(original), did
    assert cli.main(["data", "verify", f"--store={path}"]) == (opened is None), did
    said = capsys.readouterr().err
    assert said.count("error:") == (opened is None), did
    assert "Traceback" not in said, did
    if opened is None:
        words = [f"--config.data.store={path}", f"--workdir={tmp_path / 'run'}"]
        assert cli.main(["pretrain", "--config=tiny", *words]) == exit_codes.FAILED, did
        said = capsys.readouterr().err
        assert said.startswith("error: "), did
        assert str(path) in said, did
        assert said.count("\n") == 1, did
        assert not (tmp_path / "run").exists(), did
    # Commands that only inspect, without verification: anything but a traceback.
    assert "\n" not in refusal(path, verify=False)[0], did


@pytest.mark.parametrize("number", range(100))
def test_a_damaged_store_is_refused_or_the_same(number, original, tmp_path, unpickled, capsys):
    check(original, tmp_path, number, capsys)
    assert not unpickled.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100, 500))
def test_more_damaged_stores(number, original, tmp_path, unpickled, capsys):
    check(original, tmp_path, number, capsys)
    assert not unpickled.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(500, 600))
def test_damaged_stores_of_real_text(number, real, tmp_path, unpickled, capsys):
    check(real, tmp_path, number, capsys)
    assert not unpickled.exists()


def test_the_damage_does_damage(original, tmp_path) -> None:
    """Nearly all corruptions have an effect, and unpickling would be detected."""
    harmless = []
    for number in range(100):
        path = shutil.copytree(original.path, tmp_path / f"{number}")
        did, signed = corrupt(path, number)
        if refusal(path, verify=True)[1] and not signed:
            harmless.append(did)
    assert len(harmless) < 20, harmless


def test_the_trap_works(unpickled) -> None:
    pickle.loads(pickle.dumps(Touch()))
    assert unpickled.exists()


@pytest.mark.slow
@pytest.mark.processes
def test_in_a_process_of_its_own_it_is_one_line_too(original, tmp_path) -> None:
    path = shutil.copytree(original.path, tmp_path / "store")
    file = path / "train" / "sentence_lengths.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    for verb in (
        ["data", "verify", f"--store={path}"],
        ["pretrain", "--config=tiny", f"--config.data.store={path}", f"--workdir={tmp_path}/run"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "bert_jax", *verb],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == exit_codes.FAILED
        said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        assert len(said) == 1, done.stderr
        assert f"{file}: bytes 0 to" in said[0]
        assert "Traceback" not in done.stderr


# Cached plans.


def equal(one: Plan, other: Plan) -> bool:
    return all(
        getattr(one, name).dtype == getattr(other, name).dtype
        and getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in COLUMNS
    )


@pytest.fixture(scope="module")
def plans(original, tmp_path_factory) -> dict[str, Plan]:
    """The true plan of epoch 0, and a cache folder with it and other plans."""
    cache = tmp_path_factory.mktemp("plans")
    for epoch in (0, 1):
        Plans(original.train, SPEC, cache).epoch(epoch)
    name = _folder(original, cache).name
    Plans(original.train, dataclasses.replace(SPEC, seed=9), cache).epoch(0)
    return {"cache": cache, "name": name, "plan": make_plan(original.train, SPEC, 0)}


def _folder(original: TokenStore, cache: Path) -> Path:
    return Plans(original.train, SPEC, cache)._folder(0)


def damage_plan(cache: Path, folder: Path, rng: np.random.Generator) -> str:
    """Damage to a cached plan; the files of other plans are next to it."""
    files = sorted(folder.iterdir())
    file = files[int(rng.integers(len(files)))]
    data = bytearray(file.read_bytes())
    at = int(rng.integers(len(data)))
    others = sorted(path for path in cache.iterdir() if path != folder)
    other = others[int(rng.integers(len(others)))]
    how = int(rng.integers(12))
    if how == 0:
        data[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
    elif how == 1:
        os.truncate(file, at)
    elif how == 2:
        file.unlink()
    elif how == 3:
        file.write_bytes(bytes(data) + rng.bytes(8))
    elif how == 4:
        file.write_bytes(b"" if rng.integers(2) else bytes(len(data)))
    elif how == 5:  # a whole plan of something else, complete and undamaged
        shutil.rmtree(folder)
        shutil.copytree(other, folder)
    elif how == 6:  # a file of another plan
        shutil.copy(other / file.name, file)
    elif how == 7:
        texts = ["{}", "[]", "null", '{"name": 1}', "[" * 100_000, '{"name": "x", "columns": {}}']
        text = texts[int(rng.integers(len(texts)))]
        (folder / "plan.json").write_text(text.replace('"x"', json.dumps(folder.name)))
    elif how == 8:  # no folder at all
        shutil.rmtree(folder)
        folder.write_bytes(b"x") if rng.integers(2) else folder.symlink_to("nowhere")
    elif how == 9:
        file.unlink()
        file.mkdir() if rng.integers(2) else file.symlink_to("nowhere")
    elif how == 10:  # another shape of the same bytes
        array = folder / "row_example.npy"
        values = np.load(array)
        np.save(array, values.reshape(1, -1) if rng.integers(2) else values.view(np.int32))
    else:
        (folder / "piece_start.npy").write_bytes(pickle.dumps(np.array([Touch()], object)))
    return f"damage {how} at {at} of {file.name}"


def check_plan(original, plans, tmp_path, number, capsys) -> None:
    cache = shutil.copytree(plans["cache"], tmp_path / "cache")
    before = {path.name for path in cache.iterdir()}
    folder = cache / plans["name"]
    did = damage_plan(cache, folder, np.random.default_rng(number))
    capsys.readouterr()
    assert equal(Plans(original.train, SPEC, cache).epoch(0), plans["plan"]), did
    said = capsys.readouterr().err
    assert said in ("", f"warning: {folder}: damaged plan; planning this epoch again\n"), did
    assert {path.name for path in cache.iterdir()} == before, did  # nothing is left over
    assert find(folder, COLUMNS), did  # and the next start finds it
    assert equal(Plans(original.train, SPEC, cache).epoch(0), plans["plan"]), did
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", range(40))
def test_a_damaged_plan_is_never_used(number, original, plans, tmp_path, unpickled, capsys):
    check_plan(original, plans, tmp_path, number, capsys)
    assert not unpickled.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40, 240))
def test_more_damaged_plans(number, original, plans, tmp_path, unpickled, capsys):
    check_plan(original, plans, tmp_path, number, capsys)
    assert not unpickled.exists()


def test_a_damaged_plan_is_said_to_be_made_again(original, plans, tmp_path, capsys) -> None:
    cache = shutil.copytree(plans["cache"], tmp_path / "cache")
    (cache / plans["name"] / "piece_start.npy").unlink()
    Plans(original.train, SPEC, cache).epoch(0)
    assert "damaged plan; planning this epoch again" in capsys.readouterr().err


def _race(path: Path, cache: Path, number: int, start, results) -> None:
    """A process that waits for the others, then opens the same plan."""
    store = open_store(path)
    start.wait(120)
    found = Plans(store.train, SPEC, cache).epoch(0)
    results.put((number, {name: getattr(found, name).tobytes() for name in COLUMNS}))


@pytest.mark.slow  # test_plan.py has a race of processes without damage
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.processes
def test_processes_that_write_one_plan_do_not_collide(
    damaged: bool, original, plans, tmp_path
) -> None:
    cache = tmp_path / "cache"
    if damaged:
        shutil.copytree(plans["cache"] / plans["name"], cache / plans["name"])
        (cache / plans["name"] / "row_example.npy").write_bytes(b"")
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=_race, args=(original.path, cache, n, start, results), daemon=True)
        for n in range(4)
    ]
    try:
        for process in processes:
            process.start()
        found = dict(results.get(timeout=120) for _ in processes)
        for process in processes:
            process.join(120)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    expected = {name: getattr(plans["plan"], name).tobytes() for name in COLUMNS}
    assert all(columns == expected for columns in found.values())
    assert [path.name for path in cache.iterdir()] == [plans["name"]]
    assert find(cache / plans["name"], COLUMNS)
