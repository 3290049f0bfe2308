"""One checkpoint on disk: written by one process, read by any; the only module that imports Orbax.

    STEP/params, opt, …   arrays, an item for each part of the state
         meta             JSON
         commit_success.txt

Arrays are whole NumPy arrays here, so a process reads and writes by itself: no call waits for
another process. Whenever the process dies, what has the name of a step is complete: a checkpoint is
written into a folder of another name that is renamed at the end, and renamed again before it is
removed. In a bucket nothing can be renamed at once; there STEP.unfinished lies beside a checkpoint
while it is being written or removed.
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
from bert_jax.data_pipeline.storage import atomic
from bert_jax.data_pipeline.storage.remote import is_remote, put

# What follows the step in names: of Orbax while it writes, of ours, and of ours in buckets.
_WRITTEN, _REMOVED, _UNFINISHED = ".orbax-checkpoint-tmp", ".removed", ".unfinished"

# TensorStore would repeat a request for a quarter of an hour without a word. As gcsfs does, about
# half a minute; who calls says so, and tries again. Orbax has no public name for it.
for _context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
    _context["gcs_request_retries"] = {"max_retries": 5, "initial_delay": "1s"}


def write(folder: epath.Path, items: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Writes a checkpoint whole or not at all; on return it would survive a loss of power.

    Args:
        items: name -> tree of NumPy arrays.

    Raises:
        Exception: whatever the storage raises. What there is of it then is for `discard`.
    """
    args = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    if is_remote(folder):
        if folder.exists():  # of an attempt that could not tidy up after itself
            remove(folder)
        _beside(folder, _UNFINISHED).write_text("")
    with _quietly(), _checkpointer(items) as checkpointer:
        checkpointer.save(folder, args=ocp.args.Composite(meta=ocp.args.JsonSave(meta), **args))
    if not is_remote(folder):
        atomic.sync_tree(folder)
        atomic.sync(folder.parent)
    else:
        _beside(folder, _UNFINISHED).unlink()


def read(folder: epath.Path, likes: Mapping[str, Any]) -> dict[str, Any]:
    """Items of a checkpoint as trees of NumPy arrays, of the shapes and types of `likes`.

    Raises:
        Exception: whatever Orbax raises where a file is not what was written.
        ValueError: an array of another shape or type than its like.
    """

    def empty(like: Any) -> np.ndarray:
        return np.broadcast_to(np.zeros((), like.dtype), like.shape)

    args = {
        name: ocp.args.StandardRestore(jax.tree.map(empty, tree)) for name, tree in likes.items()
    }
    with _quietly(), _checkpointer(likes) as checkpointer:
        found = checkpointer.restore(folder, args=ocp.args.Composite(**args))
    items = {name: found[name] for name in likes}

    def check(path: tuple, array: Any, like: Any) -> None:
        if (array.shape, array.dtype) != (like.shape, like.dtype):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(
                f"{name} is {array.dtype}{list(array.shape)}, not {like.dtype}{list(like.shape)}"
            )

    jax.tree_util.tree_map_with_path(check, items, dict(likes))
    return items


def replace_meta(folder: epath.Path, meta: Mapping[str, Any]) -> None:
    """Other `meta` for a checkpoint that is complete; at any moment it has the old or the new.

    Raises:
        Exception: whatever the storage raises.
    """
    put(folder / "meta" / "metadata", json.dumps(meta).encode())


def remove(folder: epath.Path) -> None:
    """Removes a checkpoint; never leaves half of one that could be taken for a whole one."""
    if not is_remote(folder):
        folder.rename(_beside(folder, _REMOVED)).rmtree()
        return
    _beside(folder, _UNFINISHED).write_text("")
    (folder / MARKER).unlink(missing_ok=True)
    folder.rmtree()
    _beside(folder, _UNFINISHED).unlink()


def discard(folder: epath.Path) -> None:
    """Removes what a failed attempt to write a checkpoint left, as far as the storage lets."""
    with suppress(Exception):
        if folder.exists():
            remove(folder)
    with suppress(Exception):
        tidy(folder.parent, folder.name)


def tidy(checkpoints: epath.Path, step: str = "") -> None:
    """Removes what is left of checkpoints that were being written or removed.

    step: of this one only.
    """
    try:
        there = list(checkpoints.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in there:
        name, dot, rest = path.name.partition(".")
        if not name.isdecimal() or step not in ("", name):
            continue
        if dot + rest == _UNFINISHED:
            folder = path.with_name(name)
            if folder in there and not (folder / MARKER).exists():
                folder.rmtree()
            path.unlink()
        elif dot + rest == _REMOVED or (dot + rest).startswith(_WRITTEN):
            path.rmtree()


def _beside(folder: epath.Path, suffix: str) -> epath.Path:
    return folder.with_name(folder.name + suffix)


def _checkpointer(items: Iterable[str]) -> ocp.Checkpointer:
    """For this process alone, however many there are."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )
    handlers: dict[str, Any] = {
        name: ocp.StandardCheckpointHandler(multiprocessing_options=alone) for name in items
    }
    handlers["meta"] = ocp.JsonCheckpointHandler(multiprocessing_options=alone)
    # Made while the writing begins, a folder that cannot be made is waited for by the threads that
    # would write into it, for twenty minutes.
    in_turn = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    options = ocp.CompositeOptions(multiprocessing_options=alone, async_options=in_turn)
    handler = ocp.CompositeCheckpointHandler(composite_options=options, **handlers)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


class _PatientLoop(asyncio.SelectorEventLoop):
    """Closes when everything that was begun has ended.

    Orbax reads and writes many arrays at once and is done when one fails. The others would then
    print tracebacks, of their own failures and of not finding the loop any more.
    """

    def close(self) -> None:
        if not self.is_closed():
            self.run_until_complete(self._end())
        super().close()

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # what failed in the last moment is still to be taken note of


class _PatientPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _PatientLoop()


@contextmanager
def _quietly() -> Iterator[None]:
    """Orbax raises what goes wrong, prints nothing, and leaves no thread at work when it is done.

    Of what fails it raises one, which the caller says in a line. Threads that write the other items
    would go on, and write into the folder of the next attempt.
    """
    before, log = asyncio.get_event_loop_policy(), logging.getLogger("absl")
    asyncio.set_event_loop_policy(_PatientPolicy())
    log.addFilter(_is_no_complaint)
    try:
        yield
    finally:
        for thread in threading.enumerate():
            if type(thread).__name__ == "_SignalingThread":
                threading.Thread.join(thread)  # Orbax's own would raise what failed in it
        log.removeFilter(_is_no_complaint)
        asyncio.set_event_loop_policy(before)


def _is_no_complaint(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING
