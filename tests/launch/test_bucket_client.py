"""The bucket client of hosts and launchers, against the emulator."""

import itertools
import types

import pytest
from gcs_emulator import Emulator

from bert_jax.launch.tpu import bucket as client
from bert_jax.launch.tpu.bucket import Bucket, BucketError


@pytest.fixture
def server(monkeypatch):
    with Emulator("bucket") as emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        monkeypatch.setattr(client, "_PAUSE", 0.0)
        yield emulator


@pytest.fixture
def bucket(server):
    return Bucket("gs://bucket/a run/launch/b1", lambda: "token")


def test_objects_are_written_read_listed_and_deleted(server, bucket):
    name = "0001/a b/ü%?#.json"
    assert bucket.read(name) is None
    assert bucket.write(name, b"content")
    assert server.read("bucket", f"a run/launch/b1/{name}") == b"content"
    assert bucket.read(name) == b"content"
    (entry,) = bucket.list("0001/a b/")
    assert (entry.name, entry.size) == (name, 7)
    assert 0 <= entry.age < 60
    bucket.write(name, b"other")
    assert bucket.list()[0].version != entry.version
    bucket.delete(name)
    bucket.delete(name)
    assert bucket.list() == []


def test_a_new_object_is_written_once(bucket):
    assert bucket.write_json("end.json", {"code": 1}, new=True)
    assert not bucket.write_json("end.json", {"code": 2}, new=True)
    assert bucket.write_json("end.json", {"code": 1}, new=True)  # as after a lost response
    assert bucket.read_json("end.json") == {"code": 1}


def test_a_listing_of_many_pages_is_complete_and_its_ages_give_an_order(bucket, monkeypatch):
    """However long the pages take to come."""
    clock = itertools.count(2e9, 100.0)
    monkeypatch.setattr(client, "_seconds", lambda date: next(clock))
    names = [f"{index:04d}" for index in range(1100)]
    for name in names:
        bucket.write(name, b"")
    entries = bucket.list()
    assert [entry.name for entry in entries] == names
    assert sorted(entries, key=lambda entry: -entry.age) == entries


def test_requests_that_fail_are_repeated(server, bucket):
    server.faults.fail_every = 2
    for index in range(5):
        assert bucket.write(str(index), b"x", new=True)
        assert bucket.read(str(index)) == b"x"
    server.faults.fail_every, server.faults.reset_every = 0, 2
    assert [entry.name for entry in bucket.list()] == list("01234")


def test_what_cannot_be_done_is_one_line(server, bucket):
    server.faults.refuse_writes = 403
    with pytest.raises(BucketError, match=r"/x: cannot be written \(writes are refused\)$"):
        bucket.write("x", b"")
    server.faults.down = True
    with pytest.raises(BucketError, match=r"/x: cannot be read \(.+\)$"):
        bucket.read("x")


def test_a_bucket_that_does_not_exist_is_named(server):
    with pytest.raises(BucketError, match=r"^gs://other: no such bucket; check its spelling$"):
        Bucket("gs://other/run", lambda: "").list()


def test_a_request_is_not_made_again_after_a_machine_has_slept(server, bucket, monkeypatch):
    """What it was to record may have changed meanwhile."""
    server.faults.fail_every = 1
    clock = itertools.chain([0.0, 5.0], itertools.repeat(3600.0))
    slept = []
    fake = types.SimpleNamespace(time=lambda: next(clock), sleep=slept.append)
    monkeypatch.setattr(client, "time", fake)
    with pytest.raises(BucketError, match="cannot be written"):
        bucket.write("x", b"")
    assert len(slept) == 2, "one more attempt, and none after the sleep"
