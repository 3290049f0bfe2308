"""The token store: flat arrays in `.npy` files beside the tokenizer that made every id in them.

    store/
      manifest.json               what is here, where it came from (fields below)
      tokenizer.json              the very file an exported checkpoint carries
      train/, held_out/           one split each, the same files in both:
        tokens.npy                [T] uint16 (uint32 where the vocabulary exceeds 65,536 entries),
                                  all documents after one another, no special tokens
        sentence_lengths.npy      [S] uint32, tokens per sentence, >= 1, summing to T
        document_lengths.npy      [D] uint32, sentences per document, >= 1, summing to S
        document_source.npy       [D] uint16, index into manifest "sources"
        document_language.npy     [D] uint16, index into manifest "languages"
        token_counts.npy          [V] int64, occurrences of every id, summing to T

Sentences of a document lie next to each other, so a run of sentences is one slice of `tokens`.

Fields of `manifest.json` (JSON, UTF-8, keys sorted; no dates, host names or absolute paths, so
that equal inputs give equal bytes):

    format_version    int, FORMAT_VERSION below
    tokenizer_digest  sha256 of the bytes of tokenizer.json
    vocab_size        V; every id is below it
    special           {"pad", "unk", "cls", "sep", "mask": id}
    sources           list, one object per source: "name"; from `build_store` also "kind",
                      "language", "files", "bytes", "documents" (raw), "characters" (cleaned),
                      "rules" {cleaning rule: times fired}, "dropped" {what: count}, "warnings"
                      [text] and "splits" {split: {"documents", "sentences", "tokens"}}
    languages         list of language codes
    held_out_share    share of each source's documents asked for as held-out
    build_digest      sha256 over the build's configuration and inputs ("" if made otherwise)
    files             {relative path: {"bytes": int, "sha256": hex, "blocks": [hex]}} for every
                      other file; "blocks" says which range is damaged, see `digests`
    digest            sha256 of this JSON without this field, see `manifest_digest`
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.buckets import again, is_remote, open_path, saying
from data_pipeline.digests import Progress, check_contents, check_size, unwatched
from data_pipeline.errors import UserError
from data_pipeline.manifest_fields import check_fields
from data_pipeline.tokenizer import SpecialIds
from data_pipeline.verify import check_split, check_tokenizer

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SPLITS = ("train", "held_out")
# Array name -> element type; tokens depend on the vocabulary, see `token_type`.
ARRAYS: Mapping[str, Any] = {
    "tokens": None,
    "sentence_lengths": np.uint32,
    "document_lengths": np.uint32,
    "document_source": np.uint16,
    "document_language": np.uint16,
    "token_counts": np.int64,
}
FILES = (TOKENIZER, *(f"{split}/{array}.npy" for split in SPLITS for array in ARRAYS))


@dataclass(frozen=True)
class Split:
    """One split's arrays; memory-mapped and read-only when they come from a store."""

    name: str  # "train" or "held_out"
    tokens: np.ndarray  # [T] uint16 or uint32
    sentence_lengths: np.ndarray  # [S] uint32, tokens per sentence, >= 1
    document_lengths: np.ndarray  # [D] uint32, sentences per document, >= 1
    document_source: np.ndarray  # [D] uint16, index into TokenStore.sources
    document_language: np.ndarray  # [D] uint16, index into TokenStore.languages
    token_counts: np.ndarray  # [V] int64
    digest: str  # sha256 over the digests of this split's files


@dataclass(frozen=True)
class TokenStore:
    """An open store."""

    path: Path
    manifest: Mapping[str, Any]
    train: Split
    held_out: Split
    sources: tuple[str, ...]
    languages: tuple[str, ...]
    vocab_size: int
    special: SpecialIds
    tokenizer_digest: str

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer.json that made every id here."""
        return self.path / TOKENIZER


def token_type(vocab_size: int) -> np.dtype:
    """The element type of tokens.npy: the smallest unsigned one that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def split_digest(name: str, files: Mapping[str, Mapping[str, Any]]) -> str:
    """sha256 over the file digests of one split, in the order of `ARRAYS`."""
    return sha256("".join(f"{a}:{files[f'{name}/{a}.npy']['sha256']}\n" for a in ARRAYS).encode())


def open_store(path: Path | str, *, verify: bool = True, watch: Progress = unwatched) -> TokenStore:
    """Open a store, memory-mapped.

    Args:
        path: the store's folder. One in a bucket (gs://…) is copied to the cache folder first,
            where it stays; see `staging`.
        verify: read everything once: size and sha256 of every file, every id below the vocabulary
            size, lengths >= 1 that add up, sources and languages that exist, counts, tokenizer.
            Without it only the sizes are compared.
        watch: told of the bytes looked at while verifying, `bytes_to_verify` in all.

    Raises:
        UserError: no store there, another format, a file that is missing or was changed, an id
            beyond the vocabulary; each names the file and the first bad place in it.
    """
    if is_remote(path):
        return _open_staged(str(path), verify, watch)
    path = Path(path)
    manifest = read_manifest(path)
    files: Mapping[str, Mapping[str, Any]] = manifest["files"]
    for relative, entry in files.items():
        check_size(path / relative, entry)
    if verify:
        for relative, entry in files.items():
            check_contents(path / relative, entry, watch)
        check_tokenizer(path / TOKENIZER, manifest)
    splits = {name: _open_split(path, name, manifest) for name in SPLITS}
    if verify:
        for split in splits.values():
            check_split(path / split.name, split, manifest, watch)
    return TokenStore(
        path=path,
        manifest=manifest,
        train=splits["train"],
        held_out=splits["held_out"],
        sources=tuple(source["name"] for source in manifest["sources"]),
        languages=tuple(manifest["languages"]),
        vocab_size=manifest["vocab_size"],
        special=SpecialIds(**manifest["special"]),
        tokenizer_digest=manifest["tokenizer_digest"],
    )


def _open_staged(url: str, verify: bool, watch: Progress) -> TokenStore:
    from data_pipeline.staging import stage

    try:
        return open_store(stage(url), verify=verify, watch=watch)
    except UserError:
        # The copy was damaged after it was made: what is wrong in it is copied again.
        return open_store(stage(url, repair=True), verify=verify, watch=watch)


def bytes_to_verify(manifest: Mapping[str, Any]) -> int:
    """What `open_store` looks at: every file for its hash, the ids again for what they are."""
    files = manifest["files"]
    ids = sum(files[f"{split}/tokens.npy"]["bytes"] for split in SPLITS)
    return ids + sum(entry["bytes"] for entry in files.values())


def read_manifest(path: Path | str) -> dict[str, Any]:
    """manifest.json of the store at `path`, a local folder or one in a bucket.

    Raises:
        UserError: there is none, it is not JSON, was changed, or has another format version or
            other fields; or the bucket cannot be read.
    """
    return parse_manifest(manifest_bytes(path), f"{path}/{MANIFEST}")


def manifest_bytes(path: Path | str) -> bytes:
    """manifest.json as it stands; UserError as `read_manifest`."""
    where = "no such bucket, or " if is_remote(path) else ""
    try:
        with saying(path):
            file = open_path(path) / MANIFEST
            return again(file.read_bytes)
    except UserError as error:
        if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise
        raise UserError(
            f"{path}: not a token store ({where}no {MANIFEST}); make one with `bert-jax data build`"
        ) from None


def parse_manifest(data: bytes, file: str) -> dict[str, Any]:
    """A manifest from its bytes; UserError, naming `file`, as `read_manifest`."""
    try:
        manifest = json.loads(data)
        version = manifest["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{file}: not a token store's manifest; build the store again") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{file}: format version {version}, this program reads {FORMAT_VERSION}; "
            "build the store again"
        )
    if manifest.get("digest") != manifest_digest(manifest):
        raise UserError(
            f"{file}: was changed after it was written (its digest says so); "
            "copy it again or rebuild the store"
        )
    check_fields(file, manifest, FILES)
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """sha256 of a manifest's values: of compact JSON with sorted keys, without "digest"."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def _open_split(path: Path, name: str, manifest: Mapping[str, Any]) -> Split:
    arrays = {}
    for array, kind in ARRAYS.items():
        file = path / name / f"{array}.npy"
        wanted = np.dtype(kind or token_type(manifest["vocab_size"]))
        try:
            # Not np.load, which would also open archives.
            arrays[array] = np.lib.format.open_memmap(file, mode="r")
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from None
        except Exception as error:  # numpy raises anything about a header that is not one
            reason = " ".join(str(error).split())
            raise UserError(f"{file}: not a .npy file ({reason}); copy it again") from None
        if arrays[array].dtype != wanted or arrays[array].ndim != 1:
            raise UserError(
                f"{file}: {arrays[array].dtype} {arrays[array].shape}, needs a row of {wanted}; "
                "build the store again"
            )
    return Split(name=name, digest=split_digest(name, manifest["files"]), **arrays)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
