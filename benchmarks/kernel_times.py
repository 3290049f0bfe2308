"""Reads kernel times from a trace of the JAX profiler."""

import dataclasses
import gzip
import json
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Total time and calls of a kernel in a trace."""

    name: str
    microseconds: float
    calls: int


def kernels(folder: Path) -> list[Kernel]:
    """Returns the kernels of the only trace below the folder, longest total time first.

    Kernels are the events that name an HLO operation. On an accelerator only events of its streams
    count; the lines that the profiler derives from them, by module or operation, would count twice.

    Raises:
        ValueError: the folder has no trace, or more than one.
    """
    files = list(folder.rglob("perfetto_trace.json.gz"))
    if len(files) != 1:
        raise ValueError(f"{folder}: {len(files)} traces, expected one")
    events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event.get("name") == "thread_name"
    }
    streams = {place for place, name in threads.items() if name.startswith("Stream")}
    time: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in events:
        if event.get("ph") != "X" or "hlo_op" not in event.get("args", {}):
            continue
        if streams and (event["pid"], event["tid"]) not in streams:
            continue
        name = event["name"]
        time[name] = time.get(name, 0.0) + event["dur"]
        calls[name] = calls.get(name, 0) + 1
    found = [Kernel(name, total, calls[name]) for name, total in time.items()]
    return sorted(found, key=lambda kernel: -kernel.microseconds)
