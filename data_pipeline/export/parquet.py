"""Parquet with the names that models of `transformers` take as arguments."""

from collections.abc import Iterable
from io import BytesIO
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.pairing.modes import ARGUMENTS

SUFFIX: Final = ".parquet"
NEEDS_PAIRS: Final = False
HOLDS_REPEATS: Final = False  # in `labels`
_NOT_PREDICTED: Final = -100  # label that PyTorch's cross-entropy leaves out


def columns(batch: Batch, pairing: str) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `labels` (-100 where nothing is predicted), int32 [B, S],
    `token_type_ids`, `attention_mask`, int8 [B, S], and the label of the pair, int8 [B]."""
    labels = np.full_like(batch["input_ids"], _NOT_PREDICTED)
    row, slot = np.nonzero(batch["masked_weights"])
    labels[row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot]
    found = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"].astype(np.int8),
        "attention_mask": (batch["example_ids"] > 0).astype(np.int8),
        "labels": labels,
    }
    if pairing in ARGUMENTS:
        found[ARGUMENTS[pairing]] = batch["pair_labels"][:, 0].astype(np.int8)
    return found


def encode(batches: Iterable[Batch], pairing: str) -> bytes:
    """Returns a file with all rows of these batches."""
    tables = [_table(columns(batch, pairing)) for batch in batches]
    out = BytesIO()
    pq.write_table(pa.concat_tables(tables), out, compression="zstd")
    return out.getvalue()


def _table(arrays: dict[str, np.ndarray]) -> pa.Table:
    return pa.table({name: _column(array) for name, array in arrays.items()})


def _column(array: np.ndarray) -> pa.Array:
    if array.ndim == 1:
        return pa.array(array)
    rows, width = array.shape
    offsets = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, array.ravel())
