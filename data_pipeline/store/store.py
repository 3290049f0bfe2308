"""The token store: flat arrays of ids in `.npy` files, with the tokenizer that produced them.

    store/
      manifest.json               contents and their origin (fields below)
      tokenizer.json              the exact file that an exported checkpoint contains
      train/, held_out/           one split each, the same files in both:
        tokens.npy                [T] uint16 (uint32 where the vocabulary exceeds 65,536 entries),
                                  all documents concatenated, no special tokens
        sentence_lengths.npy      [S] uint32, tokens per sentence, >= 1, summing to T
        document_lengths.npy      [D] uint32, sentences per document, >= 1, summing to S
        document_source.npy       [D] uint16, index into manifest "sources"
        document_language.npy     [D] uint16, index into manifest "languages"
        token_counts.npy          [V] int64, occurrences of every id, summing to T

Sentences of a document are contiguous, so consecutive sentences are one slice of `tokens`.

Fields of `manifest.json` (JSON, UTF-8, keys sorted; no dates, host names or absolute paths, so
that equal inputs give equal bytes):

    format_version    int, `manifest.FORMAT_VERSION`
    tokenizer_digest  sha256 of the bytes of tokenizer.json
    vocab_size        V; every id is below it
    special           {"pad", "unk", "cls", "sep", "mask": id}
    sources           list, one object per source: "name"; from `build_store` also "kind",
                      "language", "splitter" {"name", "version", "rules"} of sentences (absent
                      from stores made before it was recorded, unused where a source has one
                      sentence a line), "files", "bytes", "documents" (raw), "characters" (cleaned),
                      "rules" {cleaning rule: times fired}, "dropped" {reason: count}, "warnings"
                      [text], "splits" {split: {"documents", "sentences", "tokens"}} and, in
                      newer stores, in each split also "short" (documents) and "unknown" (tokens),
                      see `quality`, "words" (of its text, between white space), and "left_out"
                      {reason files were not read: {"count": int, "first": [path]}}; with --dedup
                      also "duplicates" {name of the source of the documents that are kept:
                      documents left out}
    languages         list of language codes
    held_out_share    requested fraction of each source's documents to hold out; null: the default
    build             settings of the build, so that another one can say what has changed: versions,
                      the tokenizer's digest, those of the sources with a digest of their text
                      (absent from stores made otherwise, or before it was recorded)
    build_digest      sha256 over the build's configuration and inputs ("" if created otherwise)
    files             {relative path: {"bytes": int, "sha256": hex, "blocks": [hex]}} for every
                      other file; "blocks" locate damage, see `digests`
    digest            sha256 of this JSON without this field, see `manifest.manifest_digest`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data_pipeline.store.checks import check_split, check_tokenizer
from bert_jax.data_pipeline.store.digests import Progress, check_contents, check_size, unwatched
from bert_jax.data_pipeline.store.manifest import (
    ARRAYS,
    SPLITS,
    TOKENIZER,
    read_manifest,
    split_digest,
    token_type,
)
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.watched_files import WatchedFiles
from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds
from bert_jax.errors import UserError
from bert_jax.storage.remote import is_remote


@dataclass(frozen=True)
class TokenStore:
    """An open store.

    Attributes:
        path: its folder.
        manifest: the fields of its manifest.json.
        train, held_out: the splits, as memory-mapped arrays.
        sources, languages: names, by the index that documents have.
        vocab_size: number of ids.
        special: ids of the special tokens.
        tokenizer_digest: sha256 of its tokenizer.json.
        files: notices changes of the files while the store is open.
    """

    path: Path
    manifest: Mapping[str, Any]
    train: Split
    held_out: Split
    sources: tuple[str, ...]
    languages: tuple[str, ...]
    vocab_size: int
    special: SpecialIds
    tokenizer_digest: str
    files: WatchedFiles  # all but the manifest

    def __repr__(self) -> str:
        splits = "; ".join(
            f"{split.name}: {len(split.document_lengths):,} documents, {len(split.tokens):,} tokens"
            for split in (self.train, self.held_out)
        )
        return f"<TokenStore {str(self.path)!r}: {splits}; {self.vocab_size:,} entries>"

    @property
    def mapped(self) -> list[np.ndarray]:
        """The memory-mapped arrays."""
        splits = (self.train, self.held_out)
        return [getattr(split, array) for split in splits for array in ARRAYS]

    @property
    def words_per_token(self) -> float | None:
        """Words between white space for each token of the training text; None for a store that was
        built without a count of words."""
        splits = [source.get("splits", {}).get("train", {}) for source in self.manifest["sources"]]
        if not all("words" in split for split in splits):
            return None
        return sum(split["words"] for split in splits) / sum(split["tokens"] for split in splits)

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer.json that produced every id in the store."""
        return self.path / TOKENIZER


def open_store(path: Path | str, *, verify: bool = True, watch: Progress = unwatched) -> TokenStore:
    """Opens a store, memory-mapped.

    Args:
        path: the store's folder. One in a bucket (gs://…) is first copied to the cache folder, and
            stays there; see `staging`.
        verify: read all files and check sizes, sha256, every id against the vocabulary size,
            lengths >= 1 with the right sum, sources, languages, counts and the tokenizer.
            Otherwise only the sizes are checked.
        watch: called with the bytes read while verifying, `bytes_to_verify` in total.

    Raises:
        UserError: no store at `path`, another format, a file that is missing or was changed, an id
            outside the vocabulary; names the file and the first error in it.
    """
    if is_remote(path):
        return _open_staged(str(path), verify, watch)
    path = Path(path)
    manifest = read_manifest(path)
    files: Mapping[str, Mapping[str, Any]] = manifest["files"]
    digests = {name: entry["sha256"] for name, entry in files.items()}
    watched = WatchedFiles(path, digests)  # versions from before verification
    for relative, entry in files.items():
        check_size(path / relative, entry)
    if verify:
        for relative, entry in files.items():
            check_contents(path / relative, entry, watch)
        check_tokenizer(path / TOKENIZER, manifest)
    splits = {name: _open_split(path, name, manifest, watched) for name in SPLITS}
    if verify:
        for split in splits.values():
            check_split(path / split.name, split, manifest, watch)
    watched.check()
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
        files=watched,
    )


def _open_staged(url: str, verify: bool, watch: Progress) -> TokenStore:
    from bert_jax.data_pipeline.store.staging import stage

    try:
        return open_store(stage(url), verify=verify, watch=watch)
    except UserError:
        # The local copy was damaged after it was made: copy the damaged blocks again.
        return open_store(stage(url, repair=True), verify=verify, watch=watch)


def _open_split(path: Path, name: str, manifest: Mapping[str, Any], watched: WatchedFiles) -> Split:
    arrays = {}
    for array, kind in ARRAYS.items():
        file = path / name / f"{array}.npy"
        expected = np.dtype(kind or token_type(manifest["vocab_size"]))
        try:
            # Not np.load, which would also open .npz archives.
            arrays[array] = np.lib.format.open_memmap(file, mode="r")
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from None
        except Exception as error:  # numpy may raise anything for an invalid header
            reason = " ".join(str(error).split())
            raise UserError(f"{file}: not a .npy file ({reason}); copy it again") from None
        if arrays[array].dtype != expected or arrays[array].ndim != 1:
            raise UserError(
                f"{file}: {arrays[array].dtype} {arrays[array].shape}, must be a 1-D array of "
                f"{expected}; build the store again"
            )
    digest = split_digest(name, manifest["files"])
    return Split(name=name, digest=digest, files=watched.below(name), **arrays)
