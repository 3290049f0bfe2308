"""Search of a corpus: a file of vectors, and the text of each in a file of lines.

Q queries, vectors of D dimensions.
"""

import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from bert_jax.api.compiled import Pooling
from bert_jax.api.model import Model
from bert_jax.api.search import top_rows
from bert_jax.api.vector_files import Vectors, open_vectors
from bert_jax.config.task_settings import Join
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.class_names import is_blank
from bert_jax.finetune.tasks.rows import numbered_lines
from bert_jax.runtime.console import Console, clock, progress
from bert_jax.runtime.log import NOTICE, logger
from bert_jax.storage.remote import is_special

Similarity = Literal["cosine", "dot"]
# Of what is counted and how many there are: as `watched`.
Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
SIMILARITIES: Final[tuple[Similarity, ...]] = ("cosine", "dot")
_MANY: Final = 10_000_000  # vectors for which an index is worth its time
_BLOCK: Final = 4096  # queries that are encoded together
_QUERY: Final = "query"  # the name of the prompt for queries in folders of sentence-transformers
_SHOWN_AFTER, _SAID_EVERY = 2.0, 30.0  # seconds


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the vectors of queries, which must be those of the corpus, and of their scores.

    Attributes:
        prompt: name of the folder's prompt for queries; None: "query" if there is one, or the
            default.
        dimensions: first numbers of a vector that are kept; None: all.
        similarity: None: as the folder says, or "cosine".
    """

    layers: str = "-1"
    join: Join = "concat"
    pooling: Pooling | None = None
    prompt: str | None = None
    dimensions: int | None = None
    similarity: Similarity | None = None


@dataclass(frozen=True)
class Hit:
    """A vector that was found: its row in the file, from 0, its score, and its text if texts were
    given."""

    row: int
    score: float
    text: str | None


@dataclass(frozen=True)
class Corpus:
    """The vectors of texts; `texts` has a text on every line, None if they are not needed."""

    vectors: Vectors
    texts: Path | None

    def lines(self) -> Iterator[str]:
        """Yields the texts; UserError if their number is not that of the vectors."""
        assert self.texts is not None
        count, total = 0, len(self.vectors.stored)
        for count, line in numbered_lines(self.texts):
            if count <= total:
                yield line.rstrip("\r\n")
        if count != total:
            raise UserError(
                f"{self.texts}: {count:,} lines, but {self.vectors.path} has {total:,} vectors; "
                "give the lines that were embedded"
            )

    def texts_of(self, rows: Set[int]) -> dict[int, str]:
        """Returns the texts of some rows."""
        return {row: text for row, text in enumerate(self.lines()) if row in rows}


def open_corpus(vectors: Path, texts: Path | None) -> Corpus:
    """Opens a corpus, whose texts are not read yet; UserError as `open_vectors`, or if the texts
    are no file."""
    if texts is not None and is_special(texts):
        raise UserError(f"{texts}: not a file, so it cannot be read twice; write its lines to one")
    corpus = Corpus(open_vectors(vectors), texts)
    if (total := len(corpus.vectors.stored)) > _MANY:
        logger.log(
            NOTICE, f"{vectors}: each of {total:,} vectors is compared; an index of FAISS, which "
            "reads the same .npy, answers faster"
        )  # fmt: skip
    return corpus


def search(
    model: Model, corpus: Corpus, queries: Sequence[str], top_k: int, settings: SearchSettings
) -> list[list[Hit]]:
    """Returns the hits of each query, the best first.

    Args:
        top_k: hits of each; fewer if the corpus has fewer texts.

    Raises:
        UserError: there is no query or an empty one, the corpus has another number of lines than
            vectors, a number in them is not finite, or they do not fit the model.
    """
    if corpus.texts is not None:
        for _ in corpus.lines():  # before all else: it takes less time than what follows
            pass
    cosine = is_cosine(model, settings)
    vectors = query_vectors(model, corpus, queries, settings)
    scores, rows = nearest_rows(corpus, vectors, top_k, cosine=cosine)
    texts = corpus.texts_of(set(rows.flat)) if corpus.texts is not None else {}
    return [
        [Hit(row, score, texts.get(row)) for row, score in zip(*of_query, strict=True)]
        for of_query in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def query_vectors(
    model: Model, corpus: Corpus, queries: Sequence[str], settings: SearchSettings
) -> np.ndarray:
    """Returns the vectors of queries, float32 [Q, D]; errors as `search`."""
    for number, query in enumerate(queries, 1):
        if is_blank(query):
            raise UserError(f"query {number:,} is empty; give some text")
    if not queries:
        raise UserError("no query; give some text")
    prompt = settings.prompt
    if prompt is None and model.sentence and _QUERY in model.sentence.prompts:
        prompt = _QUERY
    found = []
    with watched("queries", len(queries)) as done:
        for first in range(0, len(queries), _BLOCK):
            block = model.encode(
                queries[first : first + _BLOCK],
                layers=settings.layers,
                join=settings.join,
                pooling=settings.pooling,
                prompt_name=prompt,
            )
            found.append(block[:, : settings.dimensions])
            if not first:
                _check_width(corpus.vectors, block.shape[1], settings)
            done(first + len(block))
    return np.concatenate(found)


def is_cosine(
    model: Model, settings: SearchSettings, remedy: str = "give similarity=cosine or dot"
) -> bool:
    """Returns whether vectors are compared by their cosine; UserError if the folder says that they
    are compared by a distance, with what to do about it."""
    of_folder = model.sentence.similarity if model.sentence else None
    similarity = settings.similarity or of_folder or "cosine"
    if similarity not in SIMILARITIES:
        raise UserError(
            f"the model's folder compares vectors by {similarity}, which search does not; {remedy}"
        )
    return similarity == "cosine"


def nearest_rows(
    corpus: Corpus,
    queries: np.ndarray,
    k: int,
    *,
    cosine: bool,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `top_rows` of the vectors of a corpus, whose file errors name; shows progress."""
    vectors = corpus.vectors
    with watched("vectors", len(vectors.stored)) as done:
        try:
            return top_rows(
                queries,
                vectors.stored,
                k,
                cosine=cosine,
                ranges=vectors.ranges,
                allowed=allowed,
                done=done,
            )
        except UserError as error:
            raise UserError(f"{vectors.path}: {error}; embed the texts again") from None


def _check_width(vectors: Vectors, width: int, settings: SearchSettings) -> None:
    own = min(width, settings.dimensions or width)
    if settings.dimensions and settings.dimensions > width:
        raise UserError(f"dimensions={settings.dimensions:,}, but a vector has {width:,}")
    if vectors.width != own:
        fewer = vectors.width < own and not settings.dimensions
        hint = f"the same model, or dimensions={vectors.width} if embed had that"
        raise UserError(
            f"{vectors.path}: vectors of {vectors.width:,} dimensions, but those of the model have "
            f"{own:,}; give {hint if fewer else 'the model and the settings of embed'}"
        )


@contextmanager
def watched(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how many of `total` are done, the rate and the time left, on standard error, once it
    has taken two seconds: a bar, or a line every half minute if that is not a terminal.

    Yields a function that is told how many are done.
    """
    errors = Console(stderr=True)
    bar = progress(what, total, errors)
    start = said = time.monotonic()
    shown = False

    def done(count: int) -> None:
        nonlocal said, shown
        now = time.monotonic()
        taken = max(now - start, 1e-9)
        rate = f"{count / taken:,.0f}/s"
        if taken > _SHOWN_AFTER and not shown:
            bar.start()
            shown = True
        bar.update(bar.task_ids[0], completed=count, rate=rate)
        if not errors.is_terminal and now - said >= _SAID_EVERY:
            left = clock(taken * (total - count) / count)
            logger.log(NOTICE, f"{count:,} of {total:,} {what}, {rate}, {left} left")
            said = now

    try:
        yield done
    finally:
        bar.stop()
