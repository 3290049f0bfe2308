"""Validates the fields of a store's manifest before anything relies on them.

A manifest with the right digest may still have been written by another program, or by hand.
"""

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from bert_jax.data_pipeline.store.digests import BLOCK
from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds
from bert_jax.errors import UserError

_MAX_IDS: Final = 2**32  # tokens are uint32 at most
_MAX_BYTES: Final = 2**63
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_BLOCK: Final = re.compile("[0-9a-f]{16}")


def check_fields(file: Path | str, manifest: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises UserError unless every field that is read later exists and is valid.

    Args:
        file: the manifest, for messages.
        names: the files of a store except manifest.json; the manifest must list exactly these, so
            that no name in it points outside its folder.
    """

    def require(valid: bool, field: str, value: Any, expected: str) -> None:
        if not valid:
            _reject(file, field, value, expected)

    def get(field: str) -> Any:
        if field not in manifest:
            raise UserError(f"{file}: has no {field!r}; build the store again")
        return manifest[field]

    size = get("vocab_size")
    require(_is_int(size, 1, _MAX_IDS), "vocab_size", size, "a vocabulary size")
    digest = get("tokenizer_digest")
    require(_is_hex(digest, _DIGEST), "tokenizer_digest", digest, "a sha256")
    require(
        isinstance(get("build_digest"), str), "build_digest", manifest["build_digest"], "a string"
    )
    special = get("special")
    valid = isinstance(special, dict) and set(special) == set(SpecialIds._fields)
    valid = valid and all(_is_int(i, 0, size - 1) for i in special.values())
    require(valid, "special", special, f"an id for each of {', '.join(SpecialIds._fields)}")
    languages = get("languages")
    valid = isinstance(languages, list) and all(isinstance(name, str) for name in languages)
    require(valid, "languages", languages, "a list of language codes")
    sources = get("sources")
    require(isinstance(sources, list), "sources", sources, "a list of objects")
    for number, source in enumerate(sources):
        valid = isinstance(source, dict) and isinstance(source.get("name"), str)
        require(valid, f"sources[{number}]", source, "an object with a name")
        splits = source.get("splits", {})
        valid = isinstance(splits, dict) and all(isinstance(s, dict) for s in splits.values())
        counts = [c for s in splits.values() for c in s.values()] if valid else []
        valid = valid and all(_is_int(count, 0, _MAX_BYTES) for count in counts)
        require(valid, f"sources[{number}].splits", splits, "counts for each split")
        left_out = source.get("left_out", {})
        valid = isinstance(left_out, dict) and all(map(_is_left_out, left_out.values()))
        require(
            valid, f"sources[{number}].left_out", left_out, '"count" and "first" for each reason'
        )
    build = manifest.get("build", {})
    require(isinstance(build, dict), "build", build, "an object")
    files = get("files")
    require(isinstance(files, dict), "files", files, "an object")
    missing = sorted(set(names) - set(files))
    if missing:
        folder = Path(file).parent
        raise UserError(f"{folder / missing[0]}: not in the manifest; build the store again")
    unknown = sorted(set(files) - set(names))
    require(not unknown, "files", unknown[:1], "only the names of a store's files")
    for name, entry in files.items():
        require(_is_entry(entry), f"files[{name}]", entry, '"bytes", "sha256" and "blocks"')


def _is_entry(entry: Any) -> bool:
    if not (isinstance(entry, dict) and {"bytes", "sha256", "blocks"} <= set(entry)):
        return False
    if not (_is_int(entry["bytes"], 0, _MAX_BYTES) and _is_hex(entry["sha256"], _DIGEST)):
        return False
    blocks = entry["blocks"]
    if not (isinstance(blocks, list) and len(blocks) == math.ceil(entry["bytes"] / BLOCK)):
        return False
    return all(_is_hex(block, _BLOCK) for block in blocks)


def _is_left_out(entry: Any) -> bool:
    if not (isinstance(entry, dict) and isinstance(entry.get("first"), list)):
        return False
    names = all(isinstance(name, str) for name in entry["first"])
    return names and _is_int(entry.get("count"), 0, _MAX_BYTES)


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_hex(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))


def _reject(file: Path | str, field: str, value: Any, expected: str) -> NoReturn:
    shown = ascii(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    raise UserError(f"{file}: {field} is {shown}, must be {expected}; build the store again")
