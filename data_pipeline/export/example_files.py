"""Writes rows of batches as a folder of files.

Files are written one by one to a folder beside it (`.NAME.exporting`), which is renamed when all
are there; the same command resumes an interrupted export. A file depends only on the settings, so
every file that exists is complete and right.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.export.formats import Format
from bert_jax.data_pipeline.store_build import working_folder
from bert_jax.errors import UserError
from bert_jax.storage import atomic, json_record
from bert_jax.storage.outputs import OutputKind, check_output
from bert_jax.storage.remote import storage_errors

ABOUT: Final = "examples.json"  # the settings of the rows
EXAMPLES: Final = OutputKind(
    "folder of examples",
    lambda out: (out / ABOUT).exists(),
    is_folder=True,
    in_buckets=False,
    by_rename=True,
)
_FILE_TOKENS = 1 << 23  # positions in the rows of one file


@dataclass(frozen=True)
class Rows:
    """The rows to export: rows 0 to `total` of consecutive batches.

    Attributes:
        batch: (number of the batch, rows of it) -> these rows.
        batch_size, width: rows of a batch, and positions of a row.
        pairing: see `pairing.modes`.
    """

    batch: Callable[[int, Sequence[int]], Batch]
    total: int
    batch_size: int
    width: int
    pairing: str

    @property
    def file_starts(self) -> range:
        """The first row of every file."""
        return range(0, self.total, max(1, _FILE_TOKENS // self.width))

    def batches_of(self, start: int) -> Iterator[Batch]:
        """Yields the rows of the file that begins at row `start`."""
        stop, size = min(start + self.file_starts.step, self.total), self.batch_size
        for number in range(start // size, -(-stop // size)):
            first = number * size
            yield self.batch(number, range(max(start - first, 0), min(stop - first, size)))


def export_rows(
    rows: Rows,
    format: Format,
    out: Path,
    *,
    name: str,
    about: Mapping[str, Any],
    advance: Callable[[int], None] = lambda rows: None,
) -> int:
    """Writes the rows as files NAME-00000-of-00003 and so on; returns their number.

    Args:
        about: everything that decides the bytes of the files, as JSON.
        advance: called with the number of rows of every batch, and of files that exist.

    Raises:
        UserError: something else is at `out`, or rows of other settings; the disk is full or
            rejects the write (finished files are kept); another process writes the same.
    """
    check_output(out, EXAMPLES)
    starts = rows.file_starts
    names = [f"{name}-{i:05}-of-{len(starts):05}{format.SUFFIX}" for i in range(len(starts))]
    work = out.with_name(f".{out.name}.exporting")
    remedy = "; free some space or grant access and run the same command again to resume"
    with storage_errors(out, "cannot be written", remedy):
        if not working_folder.is_free(out):
            _check(out, about, "remove it, or choose another --out")
            _check_files(out, names)
            advance(rows.total)
            return len(starts)
        working_folder.claim(work)
        with working_folder.locked(work):
            made = work / "examples"
            made.mkdir(exist_ok=True)
            if (made / ABOUT).exists():
                _check(made, about, "remove it, or finish it with the settings it was begun with")
            else:
                atomic.write_text(made / ABOUT, json.dumps(about, indent=1, sort_keys=True) + "\n")
            for file_name, start in zip(names, starts, strict=True):
                file = made / file_name
                if file.exists():
                    advance(min(starts.step, rows.total - start))
                    continue
                batches = _counted(rows.batches_of(start), advance)
                atomic.write_bytes(file, format.encode(batches, rows.pairing))
            atomic.publish(made, out)
        working_folder.remove(work)
    return len(starts)


def _counted(batches: Iterator[Batch], advance: Callable[[int], None]) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        advance(len(batch["input_ids"]))


def _check_files(folder: Path, names: Sequence[str]) -> None:
    """Raises UserError if one of the files is not there."""
    if missing := next((name for name in names if not (folder / name).is_file()), None):
        raise UserError(f"{folder}: {missing} is missing; remove the folder and export again")


def _check(folder: Path, about: Mapping[str, Any], remedy: str) -> None:
    """Raises UserError unless a folder has rows of the same settings."""
    try:
        found = json_record.read_json(folder / ABOUT, dict)
    except (OSError, ValueError):
        raise UserError(f"{folder}: exists and has no exported examples; {remedy}") from None
    wanted = json.loads(json.dumps(about))
    other = sorted(key for key in found | wanted if found.get(key) != wanted.get(key))
    if other:
        raise UserError(
            f"{folder}: has examples exported with another {', '.join(other)}; {remedy}"
        )
