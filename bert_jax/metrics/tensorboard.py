"""Writes scalars as TensorBoard event files, appended like other records (see `jsonl`).

tensorboardX's writer passes events to a thread that dies when the disk is full, and then blocks on
it; only its protocol buffers are used here.
"""

import os
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import hparams as hparam_summaries
from tensorboardX.summary import scalar

from bert_jax.metrics.descriptions import description
from bert_jax.metrics.jsonl import Appender
from bert_jax.storage.records import framed

_COMPARED: Final = ("train/loss", "eval/loss")  # columns of the table of runs, after the hparams


class ScalarEvents:
    """A new event file in a folder, for one start of a run; `write` never raises."""

    def __init__(
        self,
        folder: epath.Path,
        first_step: int,
        hparams: Mapping[str, Any] = MappingProxyType({}),
    ):
        """first_step: step resumed from; TensorBoard discards older events beyond it. hparams: for
        its table of runs."""
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        header = _record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._appender = Appender(folder / name, header=header)
        begins = Event(step=first_step, session_log=SessionLog(status=SessionLog.START))
        self._appender.append(_record(begins))
        if hparams:
            experiment, session, _ = hparam_summaries(hparams, dict.fromkeys(_COMPARED))
            for summary in (experiment, session):
                self._appender.append(_record(Event(wall_time=time.time(), summary=summary)))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars by name after `step` updates."""
        now = time.time()
        summaries = (
            scalar(name, value, summary_description=description(name))
            for name, value in scalars.items()
        )
        events = (Event(wall_time=now, step=step, summary=summary) for summary in summaries)
        self._appender.append(b"".join(map(_record, events)))

    def close(self) -> None:
        self._appender.close()


def _record(event: Event) -> bytes:
    return framed(event.SerializeToString())
