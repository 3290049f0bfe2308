"""Source kind `arrow`: a dataset that `datasets` of Hugging Face saved, or files of Arrow; each row
is a document.

`Dataset.save_to_disk` writes streams of record batches and state.json, which names their files;
`DatasetDict.save_to_disk` writes such a folder for each split. Arrow is read memory-mapped, so that
a file in a bucket is copied to the local cache first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.folders.check import check_files, check_keys
from bert_jax.data_pipeline.folders.datasets import DATASET_FILES, DICT_KEYS, STATE_KEYS
from bert_jax.data_pipeline.sources import finding, formats
from bert_jax.data_pipeline.sources.arrow_batches import (
    arrow_errors,
    check_arrow,
    check_schema,
    documents,
)
from bert_jax.data_pipeline.sources.cutting import cut_positions
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.kind import SPLIT, TEXT, TITLE, Kind
from bert_jax.data_pipeline.sources.rows import column_names
from bert_jax.errors import UserError, nearest
from bert_jax.storage import json_record
from bert_jax.storage.local_copy import local_folder
from bert_jax.storage.remote import is_remote, storage_errors

_EXTENSIONS = (".arrow", ".feather")
_SPLITS: Final = "dataset_dict.json"
_STATE: Final = "state.json"
_FILE: Final = b"ARROW1"  # of a file of Arrow, which is a stream with an index


def find(spec: SourceSpec) -> Found:
    """Returns the files of a dataset's split, or the Arrow files of the source."""
    check_arrow("Arrow files")
    whole = _json(spec.path / _SPLITS, {"splits": [json_record.file_name]})
    check_keys(whole, DICT_KEYS, spec.path / _SPLITS)
    splits = whole.get("splits", [])
    if splits and spec.split not in splits:
        raise UserError(f"{spec.path}: no split {spec.split!r}{nearest(spec.split, splits)}")
    if not splits and spec.split != SourceSpec.split:
        raise UserError(f"{spec.path}: has no splits; leave out split={spec.split}")
    folder = spec.path / spec.split if splits else spec.path
    state = _json(folder / _STATE, {"_data_files": [{"filename": json_record.file_name}]})
    check_keys(state, STATE_KEYS, folder / _STATE)
    files = [folder / entry["filename"] for entry in state.get("_data_files", [])]
    if files:
        if not is_remote(folder):
            check_files(folder, DATASET_FILES)
        about = [spec.path / _SPLITS] if splits else []
        return Found(files, {}, about=[*about, folder / _STATE])
    return finding.find_ending(spec, _EXTENSIONS, "Arrow files (.arrow)")


def _json(path: Path, form: json_record.Form) -> dict[str, Any]:
    """Returns what a dataset says of itself; an empty mapping if there is no such file."""
    try:
        with storage_errors(path):
            return json_record.read_if_there(path, form) or {}
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); save the dataset again") from None


@contextmanager
def _batches(spec: SourceSpec, path: Path) -> Iterator[Iterator[Any]]:
    """Opens a file; yields its record batches, of which only the columns are read."""
    import pyarrow as pa
    from pyarrow import ipc

    local = local_folder([path]) / path.name
    with arrow_errors(path, "Arrow"), pa.memory_map(str(local)) as mapped:
        is_file = mapped.read(len(_FILE)) == _FILE
        mapped.seek(0)
        open_any = ipc.open_file if is_file else ipc.open_stream
        schema = open_any(mapped).schema
        check_schema(path, spec, schema)
        mapped.seek(0)
        wanted = [schema.names.index(name) for name in column_names(spec)]
        reader = open_any(mapped, options=ipc.IpcReadOptions(included_fields=wanted))
        numbers = range(reader.num_record_batches) if is_file else ()
        yield map(_validated, map(reader.get_batch, numbers) if is_file else iter(reader))


def _validated(batch: Any) -> Any:
    """Returns a batch whose offsets are within its bytes and whose text is UTF-8: Arrow follows any
    offset, also out of memory."""
    batch.validate(full=True)
    return batch


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields ranges of record batches; their bytes are those of the columns."""
    with _batches(spec, path) as batches:
        yield from cut_positions(path, (batch.nbytes for batch in batches))


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the documents of the record batches of one range."""
    with _batches(spec, part.path) as batches:
        yield from documents(part.path, spec, islice(batches, part.start, part.stop))


KIND: Final = Kind(
    find,
    read,
    ranges,
    options=(TEXT, TITLE, SPLIT),
    extensions=_EXTENSIONS,
    marks=(_STATE, _SPLITS),
    plain_text=False,
    formats=(formats.ARROW,),
    described="Arrow",
)
