"""Tests of damaged checkpoints: restored only if bit for bit as saved, else quarantined."""

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import list_quarantined
from saving_process import STEPS, keeping, over, peers_of, state_of

from bert_jax.checkpoint.catalog import health, list_checkpoints
from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.errors import StorageError, UserError
from bert_jax.workdir.layout import Workdir

KEEP = keeping(9)
ABSTRACT = over(jax.devices()[:1])[1]


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """A workdir with three checkpoints."""
    workdir = tmp_path_factory.mktemp("good")
    checkpoints = RunCheckpoints(Workdir.open(workdir), KEEP)
    for step in STEPS:
        checkpoints.save(jax.tree.map(jnp.asarray, state_of(step)), {"about": step})
    checkpoints.close()
    return workdir


@pytest.fixture
def workdir(good, tmp_path) -> Path:
    return shutil.copytree(good, tmp_path / "run")


def restored(workdir: Path, **how: bool) -> int:
    """Returns the restored step; asserts that every leaf has the saved bits."""
    found = RunCheckpoints(Workdir.open(workdir), KEEP).restore_newest(ABSTRACT, **how)
    assert found is not None
    state, meta = found
    step = int(state["step"])
    assert meta["step"] == meta["about"] == step
    wanted = state_of(step)
    assert jax.tree.structure(state) == jax.tree.structure(wanted)
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(wanted), strict=True
    ):
        assert (x.dtype, x.shape) == (y.dtype, y.shape), path
        assert np.asarray(x).tobytes() == y.tobytes(), path
    return step


def shown(workdir: Path) -> dict[str, str]:
    """Returns the checkpoints in quarantine and the reasons."""
    return {one.folder: one.reason for one in list_quarantined(workdir)}


def data_file(workdir: Path, step: int, item: str) -> Path:
    """Returns the file with the arrays of an item."""
    files = (workdir / "checkpoints" / f"{step}" / item).rglob("d/*")
    return max(files, key=lambda file: (file.stat().st_size, str(file)))


def rewritten(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_bits_come_back_as_they_were_on_any_number_of_devices(workdir):
    for devices in (1, 2, 8):
        _, abstract = over(jax.devices()[:devices])
        found = RunCheckpoints(Workdir.open(workdir), KEEP).restore_newest(abstract)
        assert found is not None
        for x, y, like in zip(
            jax.tree.leaves(found[0]), jax.tree.leaves(state_of(STEPS[-1])),
            jax.tree.leaves(abstract), strict=True,
        ):  # fmt: skip
            assert x.sharding == like.sharding
            assert np.asarray(x).tobytes() == y.tobytes()
    assert shown(workdir) == {}


def test_a_changed_value_is_found_where_the_files_are_sound(good, tmp_path):
    """Another state, saved correctly but with the fingerprints of this one."""
    other = state_of(12)
    other["opt"]["zeros"][7] = -0.0
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), KEEP)
    checkpoints.save(jax.tree.map(jnp.asarray, other), {"about": 12})
    checkpoints.close()
    right = good / "checkpoints" / "12" / "meta" / "metadata"
    shutil.copy(right, tmp_path / "checkpoints" / "12" / "meta" / "metadata")
    with pytest.raises(StorageError, match="no valid checkpoint is left"):
        restored(tmp_path)
    assert shown(tmp_path)["12"] == "1 of 8 arrays differ from what was saved: opt/zeros"


def test_a_run_never_begins_anew_where_there_was_a_checkpoint(workdir):
    for step in STEPS:
        (workdir / "checkpoints" / f"{step}" / "commit_success.txt").unlink()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"no valid checkpoint is left.*remove that folder"):
            restored(workdir)
    assert list(shown(workdir)) == ["12", "3", "7"]
    assert RunCheckpoints(Workdir.open(workdir / "new"), KEEP).restore_newest(ABSTRACT) is None


def test_the_second_of_a_step_does_not_take_the_place_of_the_first(workdir, good):
    for number in range(3):
        if number:
            shutil.copytree(good / "checkpoints" / "12", workdir / "checkpoints" / "12")
        (workdir / "checkpoints" / "12" / "commit_success.txt").unlink()
        assert restored(workdir) == 7
    assert list(shown(workdir)) == ["12", "12-2", "12-3"]
    assert all("commit_success.txt" in reason for reason in shown(workdir).values())


def test_another_model_is_no_damage(workdir):
    wider = jax.tree.map(lambda x: x, ABSTRACT)
    like = wider["params"]["head"]
    wider["params"]["head"] = jax.ShapeDtypeStruct((32,), like.dtype, sharding=like.sharding)
    fewer = {name: tree for name, tree in ABSTRACT.items() if name != "nonfinite"}
    for abstract, said in (
        (wider, r"params/head is bfloat16\[16\], the configuration expects bfloat16\[32\]"),
        (fewer, r"nonfinite/in_row is int32\[\], the configuration expects none"),
    ):
        with pytest.raises(UserError, match=said):
            RunCheckpoints(Workdir.open(workdir), KEEP).restore_newest(abstract)
    assert shown(workdir) == {}


def test_a_step_is_good_only_if_all_processes_say_so(workdir):
    """One of two processes; the other cannot read the newest, and finds the next one changed."""
    answers = {"restore/12/read": "it has no meta", "restore/7/verify": "params/head"}
    asked = []

    def exchange(name: str, text: str) -> list[str]:
        asked.append(name)
        return [text, answers.get(name, "")]

    checkpoints = RunCheckpoints(Workdir.open(workdir), KEEP, peers=peers_of(exchange))
    found = checkpoints.restore_newest(ABSTRACT)
    assert found is not None
    assert found[1]["step"] == 3
    assert shown(workdir) == {"12": "it has no meta", "7": "params/head"}
    assert asked == [
        "restore/list", "restore/runs", "restore/12/read", "restore/7/read", "restore/7/verify",
        "restore/3/read", "restore/3/verify",
    ]  # fmt: skip


def test_health_is_told_without_reading_arrays(workdir):
    (workdir / "checkpoints" / "7" / "commit_success.txt").unlink()
    rewritten(workdir / "checkpoints" / "12" / "meta" / "metadata", step=11)
    assert {
        step: bool(said) for step, said in health(Workdir.open(workdir).checkpoints).items()
    } == {3: 0, 7: 1, 12: 1}
    assert [one.step for one in list_checkpoints(Workdir.open(workdir).checkpoints)] == [3]


def test_nothing_is_unpickled(workdir, monkeypatch):
    """Neither by name nor in a file that replaces another."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    load = np.load

    def plain(*arguments: object, **named: object) -> object:
        assert not named.get("allow_pickle")
        return load(*arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(np, "load", plain)
    assert restored(workdir) == 12
    evil = pickle.dumps({"a": print}, protocol=0)
    for file in files_of(workdir / "checkpoints" / "12"):
        file.write_bytes(evil)
    assert restored(workdir) == 7


# --- what may happen to files -------------------------------------------------------------------


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(rng: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


def truncate(rng: random.Random, file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(max(1, len(data)))])


def zero(rng: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    at = rng.randrange(max(1, len(data)))
    end = min(len(data), at + rng.randrange(1, 64))
    data[at:end] = bytes(end - at)
    file.write_bytes(data)


def noise(rng: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    at = rng.randrange(max(1, len(data)))
    data[at : at + 32] = rng.randbytes(32)
    file.write_bytes(data)


def append(rng: random.Random, file: Path) -> None:
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.randrange(1, 99)))


def delete(rng: random.Random, file: Path) -> None:
    file.unlink()


def empty(rng: random.Random, file: Path) -> None:
    file.write_bytes(b"")


def other_json(rng: random.Random, file: Path) -> None:
    deep = "[" * 100_000
    texts = ("{}", "[]", "null", '{"format_version": 3}', '{"a": [', "9" * 5000, deep, "\x00\xff")
    file.write_text(rng.choice(texts))


def folder_instead(rng: random.Random, file: Path) -> None:
    file.unlink()
    file.mkdir()


def edit_json(rng: random.Random, file: Path) -> None:
    """Changes one value of a file, if it is JSON."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        return flip(rng, file)
    places: list[tuple] = []

    def visit(node: object) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)  # type: ignore[call-overload]
        for key, value in items:
            places.append((node, key))
            if isinstance(value, dict | list):
                visit(value)

    visit(content)
    if places:
        node, key = rng.choice(places)
        values = [None, 0, -1, 2**40, "x", [], {}, [10**6, 10**6], rng.random(), "bfloat16"]
        node[key] = rng.choice(values)
    file.write_text(json.dumps(content))
    return None


ON_A_FILE: list[Callable[[random.Random, Path], None]] = [
    flip, flip, flip, truncate, zero, noise, append, delete, empty, other_json, folder_instead,
    edit_json, edit_json,
]  # fmt: skip


def replace(rng: random.Random, checkpoints: Path) -> None:
    one, other = (rng.choice(files_of(checkpoints)) for _ in range(2))
    one.write_bytes(other.read_bytes())


def replace_by_namesake(rng: random.Random, checkpoints: Path) -> None:
    """Copies a file or an entire item of one step to another."""
    one, other = rng.sample(sorted(checkpoints.iterdir()), 2)
    inside = rng.choice([p for p in sorted(one.rglob("*")) if not p.name.startswith("d")])
    target = other / inside.relative_to(one)
    if inside.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(inside, target)
    elif target.parent.is_dir() and not target.is_dir():
        target.write_bytes(inside.read_bytes())


def swap(rng: random.Random, checkpoints: Path) -> None:
    one, other = (rng.choice(files_of(checkpoints)) for _ in range(2))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def delete_folder(rng: random.Random, checkpoints: Path) -> None:
    shutil.rmtree(rng.choice([p for p in sorted(checkpoints.rglob("*")) if p.is_dir()]))


def empty_folder(rng: random.Random, checkpoints: Path) -> None:
    folder = rng.choice([p for p in sorted(checkpoints.rglob("*")) if p.is_dir()])
    shutil.rmtree(folder)
    folder.mkdir()


def file_instead(rng: random.Random, checkpoints: Path) -> None:
    folder = rng.choice([p for p in sorted(checkpoints.rglob("*")) if p.is_dir()])
    shutil.rmtree(folder)
    folder.write_text("x")


def rename(rng: random.Random, checkpoints: Path) -> None:
    """Renames a step, or swaps two."""
    one, other = rng.sample(sorted(checkpoints.iterdir()), 2)
    if rng.random() < 0.5:
        one.rename(checkpoints / str(rng.choice([1, 5, 13, 10**12])))
    else:
        one.rename(checkpoints / "x")
        other.rename(one)
        (checkpoints / "x").rename(other)


def copy_step(rng: random.Random, checkpoints: Path) -> None:
    one = rng.choice([p for p in sorted(checkpoints.iterdir()) if p.is_dir()])
    shutil.copytree(one, checkpoints / str(rng.choice([99, 100])), dirs_exist_ok=True)


def empty_step(rng: random.Random, checkpoints: Path) -> None:
    (checkpoints / str(rng.choice([13, 50]))).mkdir(exist_ok=True)


ON_ALL: list[Callable[[random.Random, Path], None]] = [
    replace, replace_by_namesake, replace_by_namesake, swap, delete_folder, empty_folder,
    file_instead, rename, copy_step, empty_step,
]  # fmt: skip


def corrupt(rng: random.Random, workdir: Path) -> list[str]:
    """Damages the checkpoints one to three times, mostly the newest; returns the damages."""
    done = []
    checkpoints = workdir / "checkpoints"
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if len(steps := sorted(checkpoints.iterdir(), key=lambda p: int(p.name))) < 2:
            break
        if rng.random() < 0.7:
            files = files_of(steps[-1] if rng.random() < 0.8 else checkpoints)
            if files:
                how, file = rng.choice(ON_A_FILE), rng.choice(files)
                how(rng, file)
                done.append(f"{how.__name__} {file.relative_to(checkpoints)}")
        else:
            how = rng.choice(ON_ALL)
            how(rng, checkpoints)
            done.append(how.__name__)
    return done


def try_corruptions(good: Path, tmp_path: Path, seeds: range) -> None:
    used = []
    for seed in seeds:
        workdir = shutil.copytree(good, tmp_path / "run")
        done = corrupt(random.Random(seed), workdir)
        try:
            used.append(restored(workdir))
        except StorageError:
            used.append(-1)
        except Exception as error:
            raise AssertionError(f"corruption {seed}: {done}") from error
        moved = list_quarantined(workdir)
        assert all(one.reason and "\n" not in one.reason for one in moved), (seed, done)
        shutil.rmtree(workdir)
    assert len(set(used)) > 1  # they do damage, and not all of it


@pytest.mark.slow
def test_no_corruption_is_taken_for_a_checkpoint(good, tmp_path):
    try_corruptions(good, tmp_path, range(60))


@pytest.mark.nightly
def test_none_of_many_corruptions_is_taken_for_a_checkpoint(good, tmp_path):
    try_corruptions(good, tmp_path, range(1000, 1500))
