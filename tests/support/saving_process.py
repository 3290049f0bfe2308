"""A process that saves or restores checkpoints of a small state, for tests that do things to it.

    python saving_process.py save WORKDIR [--kill_at=N] [--limit=BYTES] [--attempts=N]
    python saving_process.py save|restore WORKDIR --processes=N --id=I --port=P

Prints what it did, a line for each step.
"""

import argparse
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.schema import CheckpointConfig
from bert_jax.errors import StorageError
from bert_jax.runtime.log import configure_logging
from bert_jax.runtime.streams import own_stdout
from bert_jax.storage import retry
from bert_jax.workdir.layout import Workdir

STEPS = (3, 7, 12)


def state_of(step: int) -> dict:
    """Arrays of several types, of any bits: NaNs with payloads, denormals, -0.0."""
    rng = np.random.default_rng(step)

    def bits(shape: tuple[int, ...], dtype) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        return rng.integers(0, 256, (*shape, size), np.uint8).view(dtype).reshape(shape)

    odd = np.array([0x7FC12345, 0xFF800001, 0x80000000, 1, 0x007FFFFF, 0xFF800000], np.uint32)
    return {
        "step": np.int32(step),
        "params": {
            "encoder": {"word": bits((40, 16), np.float32), "odd": odd.view(np.float32)},
            "head": bits((16,), ml_dtypes.bfloat16),
        },
        "opt": {"m": bits((40, 16), np.float32), "zeros": np.zeros(50, np.float32)},
        "nonfinite": {"in_row": np.int32(0), "on": np.array([True, False]), "q": bits((5,), "i1")},
    }


def layouts(parts: int, mesh: jax.sharding.Mesh) -> dict:
    """How a state lies on a mesh with an axis "x" of so many parts: what can be split is."""

    def layout(x: np.ndarray) -> NamedSharding:
        return NamedSharding(mesh, P("x") if x.ndim and x.shape[0] % parts == 0 else P())

    return jax.tree.map(layout, state_of(0))


def over(devices: list) -> tuple[dict, dict]:
    """(layouts, abstract state) over these devices."""
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(AxisType.Auto,), devices=devices)
    placed = layouts(len(devices), mesh)
    abstract = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state_of(0), placed
    )
    return placed, abstract


def place(state: dict, placed: dict) -> dict:
    return jax.tree.map(
        lambda x, s: jax.make_array_from_callback(x.shape, s, lambda i: np.asarray(x)[i]),
        state,
        placed,
    )


def peers_of(exchange: Callable[[str, str], list[str]], *, is_first: bool = True) -> Any:
    """The processes of a run that exchange texts in this way."""
    return SimpleNamespace(is_first=is_first, all_gather_text=exchange)


def keeping(count: int, attempts: int = 1) -> CheckpointConfig:
    return CheckpointConfig(
        every_steps=1, keep=count, keep_every_steps=0, keep_best=False, write_attempts=attempts
    )


def _die_at(number: int, workdir: Path) -> None:
    """SIGKILL before the so-manieth thing done to a file of the workdir from now on."""
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        kinds = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir")
        if event in kinds and str(workdir) in str(arguments[0]):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _exchange(client, processes: int, me: int) -> Callable[[str, str], list[str]]:
    def exchange(name: str, text: str) -> list[str]:
        client.key_value_set(f"{name}/{me}", text or "-")
        values = [client.blocking_key_value_get(f"{name}/{i}", 60_000) for i in range(processes)]
        return ["" if value == "-" else value for value in values]

    return exchange


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["save", "restore"])
    parser.add_argument("workdir", type=Path)
    for name in ("kill_at", "limit", "id", "port"):
        parser.add_argument(f"--{name}", type=int, default=0)
    for name in ("processes", "attempts"):
        parser.add_argument(f"--{name}", type=int, default=1)
    asked = parser.parse_args()
    configure_logging()
    jax.config.update("jax_platforms", "cpu")
    how = {}
    if asked.processes > 1:
        jax.config.update("jax_num_cpu_devices", 2)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = f"127.0.0.1:{asked.port}"
        jax.distributed.initialize(address, asked.processes, asked.id)
        client = jax._src.distributed.global_state.client
        exchange = _exchange(client, asked.processes, asked.id)
        how["peers"] = peers_of(exchange, is_first=asked.id == 0)
    devices = jax.devices()
    placed, abstract = over(devices if asked.what == "save" else devices[::-1])
    checkpoints = RunCheckpoints(Workdir.open(asked.workdir), keeping(2, asked.attempts), **how)
    checkpoints.prepare(abstract)
    if asked.what == "restore":
        found = checkpoints.restore_newest(abstract)
        assert found is not None
        state, meta = found
        for x, y in zip(
            jax.tree.leaves(state), jax.tree.leaves(state_of(meta["step"])), strict=True
        ):
            for shard in x.addressable_shards:
                assert np.asarray(shard.data).tobytes() == np.asarray(y)[shard.index].tobytes()
        print(f"restored {meta['step']}", flush=True)
        return

    for step in STEPS:
        if step == STEPS[-1] and asked.limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked.limit, hard))
            sys.dont_write_bytecode = True  # Python would keep a module's cut-off bytecode

            def sleep(seconds: float, hard: int = hard) -> None:
                """The storage is well again in the third pause."""
                if seconds == 4:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

            retry.sleep = sleep
        if step == STEPS[-1] and asked.kill_at:
            _die_at(asked.kill_at, Workdir.open(asked.workdir).checkpoints)
        try:
            checkpoints.save(place(state_of(step), placed), {"about": step})
            checkpoints.wait()
        except StorageError as error:
            print(f"error: {error}", flush=True)
            sys.exit(45)
        print(f"saved {step}", flush=True)
    checkpoints.close()
    if asked.processes > 1:  # process 0 serves the others until the end
        how["peers"].all_gather_text("end", "")


if __name__ == "__main__":
    with own_stdout():  # gloo's lines come from C++, from several threads at once
        main()
