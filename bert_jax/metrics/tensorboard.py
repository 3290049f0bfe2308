"""Scalars as TensorBoard reads them, appended like other records (see `event_log`).

tensorboardX' own writer hands its events to a thread that a full disk ends, and then waits for it;
here only its formats are used.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping

from etils import epath
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from bert_jax.metrics.jsonl import Appender

_VERSION = "brain.Event:2"


class ScalarEvents:
    """An event file of its own in a folder, for one start of a run; `write` never raises."""

    def __init__(self, folder: epath.Path, first_step: int):
        """first_step: of this start; TensorBoard drops what a lost stretch had written."""
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        header = _record(Event(wall_time=time.time(), file_version=_VERSION))
        self._appender = Appender(folder / name, header=header)
        begins = Event(step=first_step, session_log=SessionLog(status=SessionLog.START))
        self._appender.append(_record(begins))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """The values by name after `step` updates."""
        now = time.time()
        records = (
            _record(Event(wall_time=now, step=step, summary=scalar(name, value)))
            for name, value in scalars.items()
        )
        self._appender.append(b"".join(records))

    def close(self) -> None:
        self._appender.close()


def _record(event: Event) -> bytes:
    """An event framed with its length and checksums: TFRecord."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """The masked CRC-32C of TFRecord, little-endian."""
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
