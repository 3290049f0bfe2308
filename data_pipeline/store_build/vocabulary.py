"""Trains a vocabulary on the text that a store is built from."""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import Found, SourceSpec, read
from bert_jax.data_pipeline.sources.reading import remedy_of
from bert_jax.data_pipeline.store_build.found_sources import check_sources, find_all
from bert_jax.data_pipeline.store_build.shard import cleaned, raw_hash
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import SpecialTokens
from bert_jax.data_pipeline.tokenizer.tokenizer import Algorithm, Tokenizer
from bert_jax.storage.progress import byte_bar, terminal
from bert_jax.storage.remote import storage_errors
from bert_jax.storage.versions import HashedFile, changed, check_all, hashed

_ATTEMPTS: Final = 3


def train_tokenizer(
    sources: Sequence[SourceSpec],
    vocab_size: int,
    *,
    model: Algorithm = "wordpiece",
    lowercase: bool = True,
    special_tokens: SpecialTokens = "modernbert",
    most_bytes: int | None = None,
    progress: bool = True,
) -> Tokenizer:
    """Trains a vocabulary on the cleaned text of these sources (see `Tokenizer.train`).

    Args:
        most_bytes: if there is more raw text than this, documents are subsampled by hash. None is
            256 MiB for SentencePiece, which keeps many copies of its text in memory, and 1 GiB for
            the others.
        progress: show a bar while reading the text, and print a line when training starts.

    Raises:
        UserError: as `build.build_store` and `Tokenizer.train`; or the text changes meanwhile.
    """
    check_sources(sources)
    found = find_all(sources, progress)
    files = [(s, path) for s, result in zip(sources, found, strict=True) for path in result.files]
    versions = _hashed(found)
    sizes = {file.path: file.version.size for file in versions}
    size = sum(sizes[path] for _, path in files)
    if most_bytes is None:
        most_bytes = 1 << (28 if model in ("unigram", "bpe") else 30)
    highest = int(min(1.0, most_bytes / max(size, 1)) * (1 << 64))

    def texts() -> Iterator[str]:
        done = 0
        with byte_bar("read", size, 0, progress) as update:
            for spec, path in files:
                for document in read(spec, path):
                    if raw_hash(document.text) < highest:
                        yield cleaned(document, spec)[0]
                done += sizes[path]
                update(done)
        check_all(versions)  # before minutes of training
        if progress:  # the trainers do not report progress
            terminal.print(f"training {vocab_size:,} entries", highlight=False)

    remedy = "; free some space, or set TMPDIR to another folder"
    for _ in range(_ATTEMPTS):
        with storage_errors(tempfile.gettempdir(), "cannot write a temporary file", remedy):
            tokenizer = Tokenizer.train(
                texts(), vocab_size, model=model, lowercase=lowercase, special_tokens=special_tokens
            )
        # Where only the status of a file changed, its text may have been another one in between.
        now = check_all(versions)
        if now == versions:
            return tokenizer
        last, versions = versions, now
    raise changed(next(file.path for file, old in zip(now, last, strict=True) if file != old))


def _hashed(found: Sequence[Found]) -> tuple[HashedFile, ...]:
    """Returns the files of all sources, and those that describe them, with their digests."""

    def of(path: Path) -> HashedFile:
        with storage_errors(path, remedy=remedy_of(path)):
            return hashed(path)

    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        paths = (path for result in found for path in (*result.files, *result.about))
        return tuple(pool.map(of, dict.fromkeys(paths)))
