"""Files that a run appends to; what cannot be written is said once and tried again."""

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from etils import epath

from bert_jax.terminal import console

if TYPE_CHECKING:
    from tensorboardX.proto.event_pb2 import Event


class Appender:
    """Appends records to a file; never raises what storage does."""

    def __init__(self, path: epath.Path):
        self._path, self._waiting, self._failing = path, b"", False

    def put(self, record: bytes) -> None:
        self._waiting += record
        self.close()

    def close(self) -> None:
        """Writes what waits, if it can."""
        if not self._waiting:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0) as file:
                self._waiting = self._waiting[file.write(self._waiting) :]
        except OSError as error:
            self._failed(error.strerror or str(error))
        else:
            self._failing = False

    def _failed(self, why: str) -> None:
        if not self._failing:
            console.print(f"warning: {self._path}: cannot be written ({why}); training goes on")
        self._failing = True


class EventLog:
    """Lines; one that a killed process has cut stays alone."""

    def __init__(self, path: epath.Path):
        self._file = Appender(path)
        try:
            cut = path.exists() and not path.read_bytes().endswith(b"\n")
        except OSError:
            cut = False
        self._before = b"\n" if cut else b""

    def append(self, line: str) -> None:
        self._file.put(self._before + line.encode())
        self._before = b""

    def close(self) -> None:
        self._file.close()


def read_lines(path: epath.Path) -> Iterator[str]:
    """The lines of a log; none if nothing is there."""
    if path.exists():
        yield from path.read_bytes().decode("utf-8", "replace").split("\n")


class ScalarEvents:
    """A TensorBoard event file of its own in a folder, written in the thread that calls.

    tensorboardX's own writer hands events to a thread; where that cannot write (a full disk), it
    ends, the queue to it fills up, and the next event waits for ever.
    """

    def __init__(self, folder: epath.Path, first_step: int):
        """first_step: of this start; TensorBoard drops what a lost stretch had written."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appender(folder / name)
        begins = Event(step=first_step, session_log=SessionLog(status=SessionLog.START))
        self._file.put(_framed(Event(file_version="brain.Event:2")) + _framed(begins))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """The values by name after `step` updates."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        records = (_framed(Event(step=step, summary=scalar(n, v))) for n, v in scalars.items())
        self._file.put(b"".join(records))

    def close(self) -> None:
        self._file.close()


def _framed(event: "Event") -> bytes:
    """A record: length, checksum of the length, event, checksum of the event (TFRecord)."""
    from tensorboardX.record_writer import masked_crc32c

    event.wall_time = time.time()
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return length + next(sums) + data + next(sums)
