"""Plans a build: which ranges make which shard, and the settings that determine its bytes.

A unit is one range of a source's file or a run of small ones, about 16 MB in total. Its shard is a
pure function of the files' bytes, the source's settings and the tokenizer, and is named by the hash
of these, so it is the same on every machine, and shards of other settings are others.
"""

import collections
import dataclasses
import functools
import importlib.metadata
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.data_pipeline.sources import KINDS, Found, SourceSpec, check, kind_of, ranges
from bert_jax.data_pipeline.sources.cutting import RANGE_BYTES
from bert_jax.data_pipeline.sources.document import Range
from bert_jax.data_pipeline.sources.reading import remedy_of
from bert_jax.data_pipeline.store.manifest import TOKENIZER
from bert_jax.data_pipeline.store_build.digests import FileDigests
from bert_jax.data_pipeline.store_build.shard_files import Unit
from bert_jax.data_pipeline.store_build.signatures import version
from bert_jax.data_pipeline.text.sentences import splitter
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.storage.digest import json_digest
from bert_jax.storage.remote import storage_errors
from bert_jax.storage.versions import HashedFile

BUILD_VERSION: Final = 3  # incremented when the same text and settings give another store
_UNIT_BYTES = RANGE_BYTES
SHARDS: Final = "shards"  # folder of a working folder
# Of a source: these are in the key of a shard as they are, its other options if they are not the
# default ones, and the files of `packages` are among its files.
_IN_KEY: Final = ("kind", "name", "language", "document_lines")
HUB: Final = "hub"  # in the settings of a build: the commits of what it took from the hub
_MODULE: Final = "--module="  # before the name of a user's module, in the settings of a build
_NOT_IN_KEY: Final = ("path", "packages", "allow_partial")


class Plan(NamedTuple):
    """The units of a build, in the order of the store, and what determines them."""

    units: list[Unit]
    settings: dict[str, Any]  # of JSON types


def plan_units(
    sources: Sequence[SourceSpec],
    found: Sequence[Found],
    tokenizer: Tokenizer,
    work: Path,
    digests: FileDigests,
    *,
    signatures: bool = False,
) -> Plan:
    """Returns the units of all sources.

    Args:
        work: folder where shards are built.
        signatures: of the documents, for near duplicates.

    Raises:
        UserError: a file cannot be read, or has another format.
    """
    versions = _versions()
    common = [BUILD_VERSION, list(versions.values()), tokenizer.digest]
    if signatures:
        versions["signatures"] = version()
        common.append(versions["signatures"])
    units: list[Unit] = []
    of_sources = []
    for spec, result in zip(sources, found, strict=True):
        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            about = tuple(pool.map(functools.partial(_digest, digests), result.about))
            examined = pool.map(functools.partial(_examine, spec, digests), result.files)
            of_file = dict(zip(result.files, examined, strict=True))
        alone = result.files == [spec.path]
        base = result.base or (spec.path.parent if alone else spec.path)
        names = {path: os.path.relpath(path, base) for path in of_file}
        options, libraries = _options(spec), _libraries(spec)
        key = [*(getattr(spec, name) for name in _IN_KEY), *([options] if options else [])]
        key += libraries.values()
        for group in _groups(part for _, parts in of_file.values() for part in parts):
            contents = [
                [names[part.path], of_file[part.path][0].digest, *_position(part)] for part in group
            ]
            name = json_digest([*common, key, contents], sort_keys=False)
            size = sum(part.bytes for part in group)
            shard, copy = work / SHARDS / name, work / TOKENIZER
            paths = dict.fromkeys(part.path for part in group)
            files = (*(of_file[path][0] for path in paths), *about)
            units.append(
                Unit(spec, tuple(group), size, shard, copy, signatures=signatures, files=files)
            )
        text = json_digest([[names[path], file.digest] for path, (file, _) in of_file.items()])
        settings = {name: getattr(spec, name) for name in _IN_KEY}
        # Named as they are written, so that `text=` is not the digest of the text.
        settings |= {f"{name}=": value for name, value in options.items()}
        settings |= {**libraries, "files": len(of_file), "text": text}
        of_sources.append(settings)
    settings = {"version": BUILD_VERSION, **versions, "tokenizer": tokenizer.digest}
    if commits := dict(collections.ChainMap(tokenizer.commits, *(dict(f.commits) for f in found))):
        settings[HUB] = commits
    return Plan(units, {**settings, "sources": of_sources})


def _versions() -> dict[str, Any]:
    """Returns what divides and encodes sentences: in the key of every shard."""
    return {"splitter": splitter(), "tokenizers": importlib.metadata.version("tokenizers")}


def versions_of(unit: Unit) -> dict[str, Any]:
    """Returns the version, on this machine, of all that determines the bytes of a unit's shard."""
    signatures = {"signatures": version()} if unit.signatures else {}
    return {"version": BUILD_VERSION, **_versions(), **signatures, **_libraries(unit.source)}


def _options(spec: SourceSpec) -> dict[str, Any]:
    """Returns the options of a source's kind that are not the default ones."""
    return {
        field.name: getattr(spec, field.name)
        for field in dataclasses.fields(spec)
        if field.name not in (*_IN_KEY, *_NOT_IN_KEY) and getattr(spec, field.name) != field.default
    }


def _libraries(spec: SourceSpec) -> dict[str, str]:
    """Returns the versions of the packages, and of the user's module, that decide what a source's
    kind reads."""
    module = KINDS.module_of(spec.kind)
    return {name: importlib.metadata.version(name) for name in kind_of(spec).libraries} | (
        {f"{_MODULE}{module.name}": module.sha256} if module else {}
    )


def _position(part: Range) -> list[int]:
    """Returns where a range is in its file; nothing for a whole file."""
    return [] if part.stop is None else [part.start, part.stop]


def _groups(parts: Iterable[Range]) -> Iterator[list[Range]]:
    group: list[Range] = []
    size = 0
    for part in parts:
        group.append(part)
        size += part.bytes
        if size >= _UNIT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _examine(spec: SourceSpec, digests: FileDigests, path: Path) -> tuple[HashedFile, list[Range]]:
    """Checks that a file has its source's kind; returns it with its digest, and its ranges."""
    check(spec, path)
    file = _digest(digests, path)
    with storage_errors(path, remedy=remedy_of(path)):
        return file, ranges(spec, path)


def _digest(digests: FileDigests, path: Path) -> HashedFile:
    with storage_errors(path, remedy=remedy_of(path)):
        return digests.of(path)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Returns the first setting that differs, as words: "the tokenizer", "lang of source 'a'"."""
    if name := _first_change(old, new, besides="sources"):
        return _words(f"the {name}", old.get(name), new.get(name))
    was, now = (_sources(settings) for settings in (old, new))
    if list(was) != list(now):
        return _words("the names of the sources", ", ".join(was), ", ".join(now))
    for source, one in was.items():
        if name := _first_change(one, now[source]):
            return _words(f"{name} of source {source!r}", one.get(name), now[source].get(name))
    return ""


def module_of(settings: Mapping[str, Any], kind: str) -> str:
    """Returns the flag of the user's module that has read a kind of source, and its digest; "" if
    the settings of a build name none."""
    for source in _sources(settings).values():
        for name, digest in source.items():
            if source.get("kind") == kind and name.startswith(_MODULE):
                return f"{name} (sha256 {str(digest)[:12]}…)"
    return ""


def commits_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the commits of what a build took from the hub; of settings read from a file."""
    commits = settings.get(HUB)
    valid = isinstance(commits, dict) and all(isinstance(value, str) for value in commits.values())
    return dict(commits) if isinstance(commits, dict) and valid else {}


def _first_change(old: Mapping[str, Any], new: Mapping[str, Any], besides: str = "") -> str | None:
    modules = [
        sorted(str(value) for name, value in each.items() if name.startswith(_MODULE))
        for each in (old, new)
    ]
    same = modules[0] == modules[1]  # whatever its name is
    names = (name for name in {**old, **new} if name != besides)
    names = (name for name in names if not (same and name.startswith(_MODULE)))
    return next((name for name in names if old.get(name) != new.get(name)), None)


def _sources(settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the settings of each source; those that are read from a file may be none."""
    sources = settings.get("sources")
    listed = sources if isinstance(sources, list) else []
    return {str(source.get("name")): source for source in listed if isinstance(source, dict)}


def _words(what: str, was: object, now: object) -> str:
    if isinstance(was, str) and len(was) == 64:  # a digest
        return what
    was, now = ("default" if value is None else value for value in (was, now))
    return f"{what} ({was}, now {now})"
