"""The check that a host's disk has room; tests/project/test_full_disk.py has a real full one."""

import shutil
import types

import pytest

from bert_jax.distributed.job import check_disk
from bert_jax.errors import UserError

PEERS = types.SimpleNamespace(process_id=1, name=lambda index: f"host-{index} (process {index})")


def test_a_host_whose_disk_is_nearly_full_is_named(tmp_path, monkeypatch):
    """Also where its cache has no folder yet."""
    asked: list[object] = []

    def usage(path: object) -> object:
        asked.append(path)
        return shutil._ntuple_diskusage(10**12, 10**12 - 10**8, 10**8)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "no" / "cache"))
    with pytest.raises(UserError) as refusal:
        check_disk(PEERS)
    assert str(refusal.value) == (
        f"host-1 (process 1): {tmp_path}/no/cache: 0.1 GB free, 1.1 needed for compiled programs "
        "and plans; free some space there, or set BERT_JAX_CACHE to a folder on another disk"
    )
    assert asked == [tmp_path]


def test_a_disk_with_room_passes(monkeypatch):
    usage = shutil._ntuple_diskusage(10**12, 0, 10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    check_disk(PEERS)
