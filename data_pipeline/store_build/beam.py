"""Builds shards with Apache Beam: on Dataflow, Flink or Spark, or in processes of this machine.

A shard is a function of its unit, so the pipeline only hands out units. Workers write their shards
to the working folder as any other machine does, and this one merges them. Workers elsewhere install
`worker_package`; they refuse to work with other libraries than this machine has.
"""

import dataclasses
import io
import logging
import os
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from etils import epath

from bert_jax.data_pipeline.sources import SourceSpec
from bert_jax.data_pipeline.sources.extras import import_extra
from bert_jax.data_pipeline.store.manifest import TOKENIZER
from bert_jax.data_pipeline.store_build.shard import build_shard
from bert_jax.data_pipeline.store_build.shard_files import Unit
from bert_jax.data_pipeline.store_build.units import versions_of
from bert_jax.data_pipeline.store_build.worker_package import write_package
from bert_jax.errors import UserError, nearest, nearest_name
from bert_jax.extensions.modules import Module
from bert_jax.extensions.registry import added, repeat_all
from bert_jax.storage.read_files import path_of, read_bytes
from bert_jax.storage.remote import is_remote, open_path, put, reason

_ON_THIS_MACHINE: Final = ("direct", "fnapi")  # runners
_DATAFLOW: Final = "dataflow"
# With it, DirectRunner does not first try Prism, a runner that it downloads. We have no triggers.
_NO_DOWNLOAD: Final = "--allow_unsafe_triggers"
_QUIET: Final = "--default_sdk_harness_log_level=ERROR"
_PAUSE, _REMOTE_PAUSE = 1.0, 20.0  # seconds between looks at the finished shards
_one_at_a_time: Final = threading.Lock()  # a process builds one shard; Beam may have more threads


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of Beam."""

    options: tuple[str, ...]
    runner: str  # in lower case and without "runner": "direct", "dataflow"


def check_pipeline(
    options: Sequence[str], sources: Sequence[SourceSpec], folder: epath.PathLike
) -> Pipeline:
    """Returns a pipeline that can be run.

    Args:
        options: as Beam's documentation has them: --runner=DataflowRunner, …
        folder: the working folder.

    Raises:
        UserError: Beam is not installed, has no such option or runner, or the workers of Dataflow
            cannot reach a source or the working folder.
    """
    kinds = _import_beam().options.pipeline_options
    parsers: list[Any] = []
    said = io.StringIO()
    with _quiet(), redirect_stderr(said):
        values = kinds.PipelineOptions(list(options))
        try:
            known = values.get_all_options(add_extra_args_fn=parsers.append)
        except SystemExit:
            last = said.getvalue().strip().rpartition("error: ")[2]
            raise UserError(f"options of the Beam pipeline, after --: {last}") from None
    (parser,) = parsers
    for word in parser.parse_known_args(list(options))[1]:
        near = nearest_name(word.partition("=")[0], [f"--{name}" for name in known])
        hint = f"; did you mean {near}?" if near else ""
        raise UserError(f"{word}: no option of a Beam pipeline{hint}")
    standard = kinds.StandardOptions
    runner = _runner(known["runner"] or standard.DEFAULT_RUNNER, standard)
    if runner == _DATAFLOW:
        _check_paths(sources, folder)
    return Pipeline(tuple(options), runner)


def _runner(chosen: str, standard: Any) -> str:
    known = {name.lower(): name for name in standard.KNOWN_RUNNER_NAMES}
    name = chosen.lower()
    if "." not in chosen and name not in known and f"{name}runner" not in known:
        raise UserError(f"--runner={chosen}: unknown to Beam{nearest(chosen, known.values())}")
    return name.rpartition(".")[2].removesuffix("runner")


def _check_paths(sources: Sequence[SourceSpec], folder: epath.PathLike) -> None:
    if not is_remote(folder):
        raise UserError(
            f"{folder}: workers of Dataflow cannot write there; add --work=gs://BUCKET/FOLDER"
        )
    for source in sources:
        if not is_remote(source.path):
            raise UserError(
                f"source {source.name!r}: workers of Dataflow cannot read {source.path}; copy it "
                "to a bucket"
            )


def build_with_beam(
    pipeline: Pipeline,
    units: Sequence[Unit],
    folder: str,
    finished: Callable[[], set[str]],
    update: Callable[[int], None],
) -> None:
    """Runs a pipeline that builds the shards of some units, and waits until it has ended.

    Args:
        folder: the working folder, local or in a bucket.
        finished: returns the names of the shards that are there.
        update: called with the bytes of text of the units that are finished.

    Raises:
        UserError: the pipeline failed, or a unit cannot be built; finished shards are kept.
    """
    beam = _import_beam()
    failure = f"{folder}/failure-{secrets.token_hex(4)}.txt"
    versions = {unit.source.name: versions_of(unit) for unit in units}
    build = partial(_build, versions=versions, modules=added(), failure=failure)
    with tempfile.TemporaryDirectory() as scratch, _watched(units, folder, finished, update):
        words = [_QUIET, _NO_DOWNLOAD, *pipeline.options]  # of the same option, the last counts
        if pipeline.runner not in _ON_THIS_MACHINE:
            words.append(f"--extra_package={write_package(Path(scratch), units)}")
        try:
            with beam.Pipeline(argv=words) as root:
                made = root | "units" >> beam.Create([_anywhere(unit, folder) for unit in units])
                made | "spread" >> beam.Reshuffle() | "build" >> beam.Map(build)
        except Exception as error:  # of any runner's service or workers
            raise _pipeline_error(error, failure) from error
    if said := _read(failure):
        raise UserError(said)


def _import_beam() -> Any:
    with _quiet():  # it warns at once that it lacks what only Dataflow needs
        return import_extra("apache_beam", "beam", "pipelines of Apache Beam")


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _anywhere(unit: Unit, folder: str) -> Unit:
    """Returns a unit whose paths are those of any worker: absolute, and in the working folder."""
    source = dataclasses.replace(unit.source, path=_absolute(unit.source.path))
    ranges = tuple(dataclasses.replace(p, path=_absolute(p.path)) for p in unit.ranges)
    files = tuple(dataclasses.replace(file, path=_absolute(file.path)) for file in unit.files)
    shard, tokenizer = _absolute(unit.shard), path_of(f"{folder}/{TOKENIZER}")
    return dataclasses.replace(
        unit, source=source, ranges=ranges, files=files, shard=shard, tokenizer=tokenizer
    )


def _absolute(path: Path) -> Path:
    return path if is_remote(path) else path.absolute()  # links stay: names of files depend on them


def _build(
    unit: Unit,
    versions: Mapping[str, Mapping[str, Any]],
    failure: str,
    modules: Sequence[Module] = (),
) -> None:
    """Builds a shard, on a worker. What the user has to mend is written to `failure`: otherwise a
    runner would try again, and report it as the end of a traceback.

    modules: of the user, that add rows.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with _one_at_a_time:
        try:
            repeat_all(modules)
            _check_versions(unit, versions[unit.source.name])
            build_shard(_local(unit) if unit.bucket else unit, lambda count: None)
        except (UserError, OSError) as error:
            text = str(error) if isinstance(error, UserError) else f"{unit.shard}: {reason(error)}"
            put(failure, text.encode())


def _check_versions(unit: Unit, expected: Mapping[str, Any]) -> None:
    for name, here in versions_of(unit).items():
        if here != expected[name]:
            raise UserError(
                f"the {name} of a worker ({here}) is not that of the machine that started it "
                f"({expected[name]}), which may give other text; use a worker image without it"
            )


def _local(unit: Unit) -> Unit:
    """Returns a unit that is built in a folder of this worker, before its shard is sent."""
    folder = _scratch(unit.tokenizer)
    shard = folder / unit.shard.name
    return dataclasses.replace(unit, shard=shard, tokenizer=folder / TOKENIZER)


@lru_cache(maxsize=1)
def _scratch(tokenizer: Path) -> Path:
    """Returns a folder of this process with a copy of the tokenizer."""
    folder = Path(tempfile.mkdtemp(prefix="bert-jax-"))
    (folder / TOKENIZER).write_bytes(tokenizer.read_bytes())
    return folder


@contextmanager
def _watched(
    units: Sequence[Unit],
    folder: str,
    finished: Callable[[], set[str]],
    update: Callable[[int], None],
) -> Iterator[None]:
    """Reports the bytes that are done by looking at the finished shards, with any runner."""
    sizes = {unit.shard.name: unit.bytes for unit in units}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_REMOTE_PAUSE if is_remote(folder) else _PAUSE):
            with suppress(UserError):  # a bucket that does not answer
                update(sum(sizes.get(name, 0) for name in finished()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _pipeline_error(error: Exception, failure: str) -> UserError:
    """Returns the error of a pipeline that failed: what a worker wrote, else Beam's last words."""
    if said := _read(failure):
        return UserError(said)
    if isinstance(error, ImportError):
        return UserError(f"{error}: pip install 'apache-beam[gcp]' for Dataflow")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    last = (errors or lines or [type(error).__name__])[-1]
    return UserError(
        f"the Beam pipeline failed: {last[:300]}; run the same command again to resume: finished "
        "shards are kept"
    )


def _read(failure: str) -> str:
    """Returns what a worker wrote, and removes it; "" if nothing."""
    path = open_path(failure)
    if not path.exists():
        return ""
    text = read_bytes(path).decode("utf-8", "replace")
    path.unlink()
    return text
