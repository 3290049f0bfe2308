"""Digested files: damage is always detected, and no other user can write to the folder."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from bert_jax.storage.digested_files import MOST_BYTES, DigestedFiles

KEY, CONTENT = "jit_step-0123", bytes(range(9))


def kept(folder: Path, most_bytes: int = MOST_BYTES) -> DigestedFiles:
    return DigestedFiles(folder, pytest.fail, most_bytes)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_every_damage_is_seen(tmp_path):
    files = kept(tmp_path)
    for size in (0, 1, len(CONTENT)):
        for at in range(hashlib.sha256().digest_size + size):
            for spoil in (flip, lambda path, n: path.write_bytes(path.read_bytes()[:n])):
                files.put(KEY, CONTENT[:size])
                assert files.get(KEY) == CONTENT[:size]
                spoil(files.path_of(KEY), at)
                assert files.get(KEY) is None
                assert not files.path_of(KEY).exists()
    assert files.get("another") is None


def test_files_that_were_exchanged_are_not_read(tmp_path):
    """Each is a whole program, but another one than its key names."""
    files = kept(tmp_path)
    for key in "ab":
        files.put(key, key.encode())
    a, b, other = files.path_of("a"), files.path_of("b"), tmp_path / "other"
    a.rename(other)
    b.rename(a)
    other.rename(b)
    assert (files.get("a"), files.get("b")) == (None, None)


def test_the_oldest_go_first_and_others_folders_count(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    files = kept(one, most_bytes=8 * 132)
    for number in range(8):
        kept(other if number % 2 else one).put(f"{number}", bytes(100))
        os.utime(kept(other if number % 2 else one).path_of(f"{number}"), (number, number))
    assert files.get("0")  # used just now
    files.put("new", bytes(4 * 132 - 32))
    assert {path.stem for path in tmp_path.glob("*/*")} == {"0", "5", "6", "7", "new"}
    files.put("large", bytes(10**4))
    assert {path.stem for path in tmp_path.glob("*/*")} <= {"large"}


def test_folders_with_room_are_seldom_counted_and_stay_within_the_limit(tmp_path, monkeypatch):
    """Of thousands of programs, a count takes longer than a compilation of a small one."""
    count, counted = DigestedFiles._make_room, []
    monkeypatch.setattr(
        DigestedFiles, "_make_room", lambda files, more: counted.append(more) or count(files, more)
    )
    limit = 100 * 132
    (tmp_path / "one").mkdir()
    writers = [kept(tmp_path / "one", limit) for _ in range(4)]
    for number in range(150):
        writers[number % 4].put(f"{number}", bytes(100))
        assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= limit
        if number == 49:
            assert len(counted) < 25


@pytest.mark.slow
def test_a_reader_never_sees_half_a_program(tmp_path):
    values = [bytes([k]) * 200_000 for k in range(4)]
    writers = [
        threading.Thread(target=lambda v=v: [kept(tmp_path).put(KEY, v) for _ in range(20)])
        for v in values
    ]
    reader = kept(tmp_path)
    reader.put(KEY, values[0])
    for writer in writers:
        writer.start()
    seen = {reader.get(KEY) for _ in range(100)}
    for writer in writers:
        writer.join()
    assert seen <= set(values)
    assert [path.stem for path in tmp_path.iterdir()] == [KEY]
