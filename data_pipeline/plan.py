"""The plan of an epoch: which tokens make which example, and which examples make which row.

A plan is a pure function of (split, PlanSpec, epoch). It is cached on disk under a hash of all
three, so that resuming anywhere is a look-up; a cache that is lost or damaged is planned again.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import threading
import uuid
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from data_pipeline import pairing
from data_pipeline.draws import PAIRING, stream_key
from data_pipeline.errors import UserError

if TYPE_CHECKING:
    from data_pipeline.store import Split

VERSION: Final = 1  # raised whenever the same spec gives another plan
SHORTEST: Final = 5  # [CLS] A [SEP] B [SEP] with one token each
_MANIFEST: Final = "plan.json"


@dataclass(frozen=True)
class PlanSpec:
    """Everything a plan depends on besides the split and the epoch.

    seq_length: tokens of a row, specials included. short_seq_prob: share of documents cut to a
    random shorter length. negative_pool: random second halves come from documents of the same
    source and language ("source"), or of the whole split ("corpus", the paper).
    """

    seq_length: int
    pairing: Literal["nsp", "sop", "full_sentences", "doc_sentences", "single"] = "nsp"
    short_seq_prob: float = 0.1
    negative_pool: Literal["source", "corpus"] = "source"
    seed: int = 0
    phase: int = 0
    dupe_factor: int = 0
    row_tokens: int | None = None
    row_predictions: int | None = None
    examples_per_row: int = 1
    predictions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.seq_length < SHORTEST:
            raise UserError(
                f"seq_length {self.seq_length} cannot hold a pair: "
                f"{SHORTEST} tokens at least ([CLS] A [SEP] B [SEP])"
            )
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise UserError(f"short_seq_prob {self.short_seq_prob} does not lie between 0 and 1")
        if self.pairing != "nsp":
            raise UserError(f'pairing "{self.pairing}" is not one of: nsp')
        if self.negative_pool not in ("source", "corpus"):
            raise UserError(f'negative_pool "{self.negative_pool}" is not one of: source, corpus')


def read_only(array: np.ndarray) -> np.ndarray:
    """A plain read-only view, whether memory-mapped or not: compiled code then meets one type."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class Plan:
    """One epoch. E examples of one or more pieces each, R rows of one or more examples each.

    piece_start: int64 [P], token address. piece_length: int32 [P], tokens. piece_segment: int8 [P];
    [SEP] follows the last piece of a segment. example_pieces: int64 [E + 1], first piece of each
    example. example_label: int8 [E], 0 = B follows A, 1 = B is random. example_source: uint16 [E].
    row_examples: int64 [R + 1], where each row starts in row_example: int64, its examples. A padded
    row holds one example. Arrays are read-only, memory-mapped where they come from the cache.
    """

    piece_start: np.ndarray
    piece_length: np.ndarray
    piece_segment: np.ndarray
    example_pieces: np.ndarray
    example_label: np.ndarray
    example_source: np.ndarray
    row_examples: np.ndarray
    row_example: np.ndarray

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, read_only(getattr(self, field.name)))

    @property
    def rows(self) -> int:
        return len(self.row_examples) - 1


def make_plan(
    split: "Split",
    spec: PlanSpec,
    epoch: int,
    *,
    sources: Sequence[str] = (),
    languages: Sequence[str] = (),
) -> Plan:
    """The plan of one epoch: about 5 s per billion tokens on one core.

    `sources` and `languages` name the indices of the split in errors. UserError where the split is
    empty, or a document has no other document to take a random second half from.
    """
    if len(split.document_lengths) == 0:
        raise UserError(f'the "{split.name}" split is empty: build the store from more documents')
    parts = list(
        pairing.nsp(
            pairing.offsets_of(split.document_lengths),
            pairing.offsets_of(split.sentence_lengths),
            _pools(split, spec.negative_pool, sources, languages),
            seq_length=spec.seq_length,
            short_seq_prob=spec.short_seq_prob,
            key=stream_key(spec.seed, spec.phase, epoch, PAIRING),
        )
    )
    document = np.concatenate([part.document for part in parts])
    count = len(document)
    return Plan(
        piece_start=np.concatenate([part.piece_start for part in parts]),
        piece_length=np.concatenate([part.piece_length for part in parts]),
        piece_segment=np.concatenate([part.piece_segment for part in parts]),
        example_pieces=pairing.offsets_of(np.concatenate([part.pieces for part in parts])),
        example_label=np.concatenate([part.label for part in parts]),
        example_source=split.document_source[document],
        row_examples=np.arange(count + 1),
        row_example=np.arange(count),
    )


def _pools(
    split: "Split",
    negative_pool: Literal["source", "corpus"],
    sources: Sequence[str],
    languages: Sequence[str],
) -> pairing.Pools:
    if negative_pool == "corpus":
        pools = pairing.Pools.group(np.zeros(len(split.document_lengths), np.int64))
    else:
        language_count = int(split.document_language.max()) + 1
        source_and_language = split.document_source.astype(np.int64) * language_count
        pools = pairing.Pools.group(source_and_language + split.document_language)
    lonely = np.flatnonzero(pools.sizes < 2)
    if len(lonely):
        document = int(pools.documents[pools.offsets[lonely[0]]])
        source, language = split.document_source[document], split.document_language[document]
        source_name = sources[source] if sources else f"number {source}"
        language_name = languages[language] if languages else f"number {language}"
        raise UserError(
            f'source "{source_name}" has a single document in language "{language_name}" in the '
            f'"{split.name}" split, and next sentence prediction draws random sentences from '
            "another one: add documents, or set negative_pool to corpus where the split has others"
        )
    return pools


class Plans:
    """The plans of all epochs of one phase, cached in `cache_dir`.

    Safe to use from several threads and processes at once: whoever plans an epoch writes it to a
    folder of its own and renames that.
    """

    def __init__(
        self,
        split: "Split",
        spec: PlanSpec,
        cache_dir: str | os.PathLike[str],
        *,
        sources: Sequence[str] = (),
        languages: Sequence[str] = (),
    ) -> None:
        self._split, self._spec = split, spec
        self._names = {"sources": sources, "languages": languages}
        self._cache_dir = Path(cache_dir)
        self._lock = threading.Lock()
        self._plans: dict[int, Future[Plan]] = {}
        self._planner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plan")

    @property
    def rows(self) -> int:
        """Rows of every epoch of the phase: what epoch 0 gives."""
        return self.epoch(0).rows

    def epoch(self, epoch: int) -> Plan:
        """The plan of an epoch: from memory, from the cache, or made now."""
        future, mine = self._claim(epoch)
        if mine:
            self._fulfil(epoch, future)
        return future.result()

    def prepare(self, epoch: int) -> None:
        """Have the plan of an epoch made in the background. Should that fail, whoever asks for the
        plan makes it, and meets the error."""
        future, mine = self._claim(epoch)
        if mine:
            self._planner.submit(self._fulfil, epoch, future)

    def _claim(self, epoch: int) -> tuple[Future[Plan], bool]:
        with self._lock:
            future = self._plans.get(epoch)
            if future is not None:
                return future, False
            return self._plans.setdefault(epoch, Future()), True

    def _fulfil(self, epoch: int, future: Future[Plan]) -> None:
        try:
            future.set_result(self._open_or_make(epoch))
        except BaseException as error:
            with self._lock:
                del self._plans[epoch]  # the next to ask tries again
            future.set_exception(error)

    def _open_or_make(self, epoch: int) -> Plan:
        folder = self._cache_dir / self._name(epoch)
        plan = _open(folder)
        if plan is not None:
            return plan
        return _keep(make_plan(self._split, self._spec, epoch, **self._names), folder)

    def _name(self, epoch: int) -> str:
        depends_on = {
            "version": VERSION,
            "split": self._split.digest,
            "spec": dataclasses.asdict(self._spec),
            "epoch": epoch,
        }
        text = json.dumps(depends_on, sort_keys=True)
        return f"plan-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _open(folder: Path) -> Plan | None:
    """The plan in a folder, or None where there is none or any byte of it is not as written."""
    try:
        checksums = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        arrays = {}
        for field in dataclasses.fields(Plan):
            arrays[field.name] = np.load(folder / f"{field.name}.npy", mmap_mode="r")
            if _checksum(arrays[field.name]) != checksums[field.name]:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Plan(**arrays)


def _checksum(array: np.ndarray) -> str:
    return f"{array.dtype.str} {array.size} {zlib.crc32(array.data):08x}"


def _keep(plan: Plan, folder: Path) -> Plan:
    """Write a plan and return it memory-mapped, so that its memory can be given back."""
    making = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    checksums = {}
    try:
        making.mkdir(parents=True)
        for field in dataclasses.fields(plan):
            array = getattr(plan, field.name)
            checksums[field.name] = _checksum(array)
            _write(making / f"{field.name}.npy", array)
        (making / _MANIFEST).write_text(json.dumps(checksums), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
        raise UserError(
            f"cannot write a plan to {folder.parent} ({error.strerror}): "
            "free some space there, or choose another cache folder"
        ) from error
    kept = _open(making)  # mapped files stay readable after they are moved or deleted
    _publish(making, folder)
    return kept or plan


def _write(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array)
        file.flush()
        os.fsync(file.fileno())  # else a crash after the rename could leave holes in the cache


def _publish(making: Path, folder: Path) -> None:
    """Move a finished folder into place; of several processes the first wins."""
    with contextlib.suppress(OSError):
        if folder.exists() and _open(folder) is None:
            folder.rename(making.with_suffix(".damaged"))
            shutil.rmtree(making.with_suffix(".damaged"), ignore_errors=True)
        making.rename(folder)
        return
    shutil.rmtree(making, ignore_errors=True)
