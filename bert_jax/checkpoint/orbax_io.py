"""Reads and writes one checkpoint on disk; the only module that imports Orbax.

    STEP/params, opt, …   arrays, an item for each part of the state
         meta             JSON
         commit_success.txt

Arrays are unsharded NumPy arrays here, so no call waits for another process. Whenever the process
dies, a folder named after a step is complete: a checkpoint is written to a temporary folder that is
renamed at the end, and renamed again before it is removed. A bucket has no atomic rename; there
STEP.unfinished exists next to a checkpoint while it is being written or removed.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint._src.serialization import tensorstore_utils

from bert_jax.checkpoint.catalog import MARKER
from bert_jax.storage import atomic
from bert_jax.storage.remote import is_remote, put

# Suffixes after the step: Orbax's while writing, ours while removing, and ours in buckets.
_WRITTEN, _REMOVED, _UNFINISHED = ".orbax-checkpoint-tmp", ".removed", ".unfinished"

# TensorStore retries a request for a quarter of an hour without a message. Limited to about half a
# minute, as in gcsfs; the caller reports it and retries. Orbax has no public name for this.
for _context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
    _context["gcs_request_retries"] = {"max_retries": 5, "initial_delay": "1s"}


def write(folder: epath.Path, items: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically; once it returns, the checkpoint survives a power loss.

    Args:
        items: name -> tree of NumPy arrays.

    Raises:
        Exception: whatever the storage raises; `discard` then removes the partial checkpoint.
    """
    args = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    if is_remote(folder):
        if folder.exists():  # from an attempt that could not clean up
            remove(folder)
        _sibling(folder, _UNFINISHED).write_text("")
    with _quietly(), _checkpointer(items) as checkpointer:
        checkpointer.save(folder, args=ocp.args.Composite(meta=ocp.args.JsonSave(meta), **args))
    if not is_remote(folder):
        atomic.sync_tree(folder)
        atomic.sync(folder.parent)
    else:
        _sibling(folder, _UNFINISHED).unlink()


def read_arrays(folder: epath.Path, likes: Mapping[str, Any]) -> dict[str, Any]:
    """Reads items of a checkpoint as trees of NumPy arrays, with shapes and dtypes of `likes`.

    Raises:
        Exception: whatever Orbax raises for a file that differs from what was written.
        ValueError: an array has another shape or dtype than in `likes`.
    """

    def empty(like: Any) -> np.ndarray:
        return np.broadcast_to(np.zeros((), like.dtype), like.shape)

    args = {
        name: ocp.args.StandardRestore(jax.tree.map(empty, tree)) for name, tree in likes.items()
    }
    with _quietly(), _checkpointer(likes) as checkpointer:
        restored = checkpointer.restore(folder, args=ocp.args.Composite(**args))
    items = {name: restored[name] for name in likes}

    def check(path: tuple, array: Any, like: Any) -> None:
        if (array.shape, array.dtype) != (like.shape, like.dtype):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(
                f"{name} is {array.dtype}{list(array.shape)}, not {like.dtype}{list(like.shape)}"
            )

    jax.tree_util.tree_map_with_path(check, items, dict(likes))
    return items


def replace_meta(folder: epath.Path, meta: Mapping[str, Any]) -> None:
    """Replaces the `meta` of a complete checkpoint atomically.

    Raises:
        Exception: whatever the storage raises.
    """
    put(folder / "meta" / "metadata", json.dumps(meta).encode())


def remove(folder: epath.Path) -> None:
    """Removes a checkpoint; never leaves a partial one that looks complete."""
    if not is_remote(folder):
        folder.rename(_sibling(folder, _REMOVED)).rmtree()
        return
    _sibling(folder, _UNFINISHED).write_text("")
    (folder / MARKER).unlink(missing_ok=True)
    folder.rmtree()
    _sibling(folder, _UNFINISHED).unlink()


def discard(folder: epath.Path) -> None:
    """Removes the files of a failed attempt to write a checkpoint, as far as possible."""
    with suppress(Exception):
        if folder.exists():
            remove(folder)
    with suppress(Exception):
        tidy(folder.parent, folder.name)


def tidy(checkpoints: epath.Path, step: str = "") -> None:
    """Removes partial checkpoints, whose writing or removal was interrupted.

    step: only those of this step.
    """
    try:
        paths = list(checkpoints.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        name, dot, rest = path.name.partition(".")
        if not name.isdecimal() or step not in ("", name):
            continue
        if dot + rest == _UNFINISHED:
            folder = path.with_name(name)
            if folder in paths and not (folder / MARKER).exists():
                folder.rmtree()
            path.unlink()
        elif dot + rest == _REMOVED or (dot + rest).startswith(_WRITTEN):
            path.rmtree()


def _sibling(folder: epath.Path, suffix: str) -> epath.Path:
    return folder.with_name(folder.name + suffix)


def _checkpointer(items: Iterable[str]) -> ocp.Checkpointer:
    """Returns a checkpointer for this process alone, without barriers."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )
    handlers: dict[str, Any] = {
        name: ocp.StandardCheckpointHandler(multiprocessing_options=alone) for name in items
    }
    handlers["meta"] = ocp.JsonCheckpointHandler(multiprocessing_options=alone)
    # If created asynchronously, a folder that cannot be created blocks the threads that write to it
    # for twenty minutes.
    synchronous = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    options = ocp.CompositeOptions(multiprocessing_options=alone, async_options=synchronous)
    handler = ocp.CompositeCheckpointHandler(composite_options=options, **handlers)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


class _DrainingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits for all its tasks before it closes.

    Orbax reads and writes many arrays at once and returns when one fails. The others would then
    print tracebacks of their own failures and of the closed loop.
    """

    def close(self) -> None:
        if not self.is_closed():
            self.run_until_complete(self._drain())
        super().close()

    async def _drain(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the last failures be retrieved


class _DrainingPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _DrainingLoop()


@contextmanager
def _quietly() -> Iterator[None]:
    """Makes Orbax raise errors without printing them, and joins all of its threads on exit.

    Orbax raises one of the errors, which the caller reports in one line. Threads that write the
    other items would otherwise continue, and write into the folder of the next attempt.
    """
    before, log = asyncio.get_event_loop_policy(), logging.getLogger("absl")
    asyncio.set_event_loop_policy(_DrainingPolicy())
    log.addFilter(_is_below_warning)
    try:
        yield
    finally:
        for thread in threading.enumerate():
            if type(thread).__name__ == "_SignalingThread":
                threading.Thread.join(thread)  # Orbax's override re-raises the thread's error
        log.removeFilter(_is_below_warning)
        asyncio.set_event_loop_policy(before)


def _is_below_warning(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING
