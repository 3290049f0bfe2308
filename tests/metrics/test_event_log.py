"""Records on a disk: complete lines after any kill, and write errors never end a run."""

import struct
import subprocess
import sys
import threading

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from bert_jax.metrics import jsonl
from bert_jax.metrics.jsonl import EventLog, read_lines
from bert_jax.metrics.tensorboard import ScalarEvents

COUNT = """
import itertools, sys
from bert_jax.metrics.jsonl import EventLog
log = EventLog(sys.argv[1])
for number in itertools.count():
    log.append(str(number))
    print(number, flush=True)
"""


@pytest.mark.processes
def test_a_record_is_there_when_append_returns(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", COUNT, str(path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            for _ in range(50):
                process.stdout.readline()
        finally:
            process.kill()
        said = 50 + len(process.stdout.read().splitlines())
    written = path.read_text().splitlines()
    assert written[:said] == [str(number) for number in range(said)]


def test_a_cut_line_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    log = EventLog(path)
    log.append('{"step": 2}\n')
    log.append('{"step": 3}')
    log.close()
    assert path.read_text() == '{"step": 1}\n{"ste\n{"step": 2}\n{"step": 3}\n'
    assert list(read_lines(path))[-2:] == ['{"step": 2}', '{"step": 3}']


def test_records_wait_for_a_full_disk(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    log = EventLog(path)
    for number in range(3):
        log.append(str(number))
    path.unlink()
    log.append("3")
    log.append("4")
    log.close()
    assert path.read_text().splitlines() == list("01234")
    full, well = capsys.readouterr().err.splitlines()
    assert full == (
        f"warning: {path}: cannot be written (No space left on device); training continues, "
        "records are buffered in memory"
    )
    assert well == f"{path}: writes succeed again"


def test_only_the_newest_records_wait(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bert_jax.metrics.jsonl._MAX_PENDING", 2)
    path = tmp_path / "file" / "metrics.jsonl"
    path.parent.write_text("in the way")
    log = EventLog(path)
    for number in range(5):
        log.append(str(number))
    path.parent.unlink()
    log.append("5")
    log.close()
    assert path.read_text().splitlines() == ["4", "5"]
    assert "writes succeed again; the 4 oldest records are lost" in capsys.readouterr().err


def test_what_is_never_written_is_counted(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    log = EventLog(tmp_path / "file" / "metrics.jsonl")
    log.append("0")
    log.close()
    assert "1 records could not be written" in capsys.readouterr().err


def test_a_write_that_fails_while_the_log_is_closed_is_tried_once_more(monkeypatch, capsys):
    """The attempt at the end of a run is one that begins there."""
    owner = jsonl.Appender("gs://bucket/run/metrics.jsonl")
    begun, tried = threading.Event(), []

    def upload(parts: jsonl._Parts) -> None:
        tried.append(len(tried))
        if len(tried) == 1:
            begun.set()
            parts._closing.wait(10)  # refused only when the run ends
            raise PermissionError("no permission")
        owner.pending.clear()

    monkeypatch.setattr(jsonl._Parts, "_upload", upload)
    owner.append(b"record")
    assert begun.wait(10)
    owner.close()
    assert tried == [0, 1]
    assert "could not be written" not in capsys.readouterr().err


def test_flushed_records_are_in_the_bucket(tmp_path, monkeypatch, capsys):
    """A machine that is lost a moment later takes no record along."""
    monkeypatch.setattr(jsonl, "is_remote", lambda path: True)  # in parts, though on a disk
    monkeypatch.setattr(jsonl, "_MIN_DELAY", 0.01)
    path, written = tmp_path / "metrics.jsonl", []
    log = EventLog(path)
    log.flush()
    for number in map(str, range(4)):
        log.append(number)
        log.flush()
        written.append(number)
        assert [line for line in read_lines(path) if line] == written
    monkeypatch.setattr(jsonl, "_FLUSH_TIMEOUT", 0.1)
    (tmp_path / "metrics-00001.jsonl").unlink()
    (tmp_path / "metrics-00001.jsonl").mkdir()  # so no write succeeds
    log.append("4")
    log.flush()
    (tmp_path / "metrics-00001.jsonl").rmdir()
    log.close()
    assert list(read_lines(path)) == [*written, "4"]


def test_parts_are_read_after_the_file(tmp_path):
    for name in ("metrics-00010.jsonl", "metrics-00002.jsonl", "metrics.jsonl", "metrics-2.jsonl"):
        (tmp_path / name).write_text(f"{name}\n")
    lines = [line for line in read_lines(tmp_path / "metrics.jsonl") if line]
    assert lines == ["metrics.jsonl", "metrics-00002.jsonl", "metrics-00010.jsonl"]
    assert not list(read_lines(tmp_path / "nowhere" / "metrics.jsonl"))


def events(file: epath.Path) -> list[Event]:
    """The events that TensorBoard reads, with checksums verified."""
    data, found = file.read_bytes(), []
    while data:
        (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        body, (body_crc,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length :][:4])
        assert (crc, body_crc) == (masked_crc32c(data[:8]), masked_crc32c(body))
        found.append(Event.FromString(body))
        data = data[16 + length :]
    return found


def test_scalars_are_events_of_tensorboard(tmp_path):
    writer = ScalarEvents(epath.Path(tmp_path), 7)
    for step in (8, 9):
        writer.write(step, {"train/loss": step / 2, "train/nsp/accuracy": 0.25})
    writer.close()
    (file,) = tmp_path.iterdir()
    assert ".tfevents." in file.name
    version, begin, *rest = events(epath.Path(file))
    assert version.file_version == "brain.Event:2"
    assert (begin.step, begin.session_log.status) == (7, begin.session_log.START)
    assert [(e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in rest] == [
        (8, "train/loss", 4.0),
        (8, "train/nsp/accuracy", 0.25),
        (9, "train/loss", 4.5),
        (9, "train/nsp/accuracy", 0.25),
    ]


@pytest.mark.slow
@pytest.mark.processes
def test_scalars_stay_readable_where_a_disk_was_full(tmp_path):
    """A partially written record is truncated, so that the next can be read."""
    code = """
import resource, sys
sys.dont_write_bytecode = True  # Python would keep a module's cut-off bytecode
from etils import epath
from bert_jax.metrics.tensorboard import ScalarEvents
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
for room in sys.argv[2:]:  # bytes left
    folder = epath.Path(sys.argv[1]) / room
    writer = ScalarEvents(folder, 0)
    size = sum(file.stat().length for file in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(room), most))
    writer.write(1, {"loss": 1.0})
    writer.write(2, {"loss": 2.0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    writer.write(3, {"loss": 3.0})
    writer.close()
"""
    rooms = ("0", "10", "60")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), *rooms],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr.count("cannot be written") == len(rooms)
    for room in rooms:
        (file,) = (tmp_path / room).iterdir()
        assert [event.step for event in events(epath.Path(file))[2:]] == [1, 2, 3], room
