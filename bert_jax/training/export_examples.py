"""`bert-jax data export-examples`: the rows that a run would train on, for other trainers."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.progress import Progress

from bert_jax.config.schema import Config, DataConfig, PhaseConfig
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline.export.example_files import EXAMPLES, Rows, export_rows
from bert_jax.data_pipeline.export.formats import find_format
from bert_jax.data_pipeline.store.store import open_store
from bert_jax.errors import UserError, count
from bert_jax.runtime.console import console, progress
from bert_jax.storage.outputs import check_output
from bert_jax.training.batches import held_out_config, phase_batches


def export_examples(
    store_path: str,
    config: Config,
    out: str,
    *,
    phase: int,
    split_name: str,
    epochs: int,
    format_name: str,
) -> None:
    """Writes the rows of a phase, with the masks of the config's seed, and prints their number.

    A packed phase is written with one example a row: the same examples with the same masks. Of the
    training split: epochs 0 to `epochs`, in the order in which the phase reads them. Of the
    held-out split: what `evaluate` measures.

    Raises:
        UserError: no such phase, held-out rows of several epochs, an empty split, a bucket, or as
            `open_store`, `find_format` and `export_rows`.
    """
    if not 0 <= phase < len(config.phases):
        raise UserError(f"--phase={phase}: the config has phases 0 to {len(config.phases) - 1}")
    check_output(out, EXAMPLES, inputs=[store_path])
    if split_name == "held_out" and epochs != 1:
        raise UserError(f"--epochs={epochs}: held-out rows have one masking; leave it out")
    held_out = split_name == "held_out"
    data = config.data if held_out else config.data_of(config.phases[phase])
    format = find_format(format_name, data.pairing, data.masking)
    store = open_store(store_path)
    config, shape = _unpacked(config, phase, held_out)
    split = store.held_out if held_out else store.train
    batches = phase_batches(config, store, split, shape)
    rows = Rows(
        batches.evaluation_batch if held_out else batches.batch,
        batches.rows_per_epoch * epochs,
        shape.batch_size,
        shape.seq_length,
        config.data.pairing,
    )
    about = {
        "format": format_name,
        "tokenizer": store.tokenizer_digest,
        "text": split.digest,
        "split": split_name,
        "epochs": epochs,
        "phase": phase,
        **_settings(config.seed, config.data_of(shape), shape),
    }
    with progress("rows", rows.total) as bar:
        files = export_rows(
            rows, format, Path(out), name=split_name, about=about, advance=_advance(bar)
        )
    examples = f"{count(rows.total, 'row')} of {rows.width} tokens"
    console.print(f"{out}: {examples} of the {split_name} split in {count(files, 'file')}")


def _unpacked(config: Config, phase: int, held_out: bool) -> tuple[Config, PhaseConfig]:
    """Returns the configuration with the phase as it is written, and that phase."""
    shape, where = config.phases[phase], f"config.phases[{phase}]"
    if held_out:
        config = held_out_config(config, shape)
        return config, config.phases[0]
    if shape.examples_per_row > 1 and shape.mask_rate_end is not None:
        raise UserError(
            f"{where} is packed, and its mask rate changes with the step: without packing, the "
            f"rows would come in other steps; set {where}.examples_per_row=1, or leave out "
            "mask_rate_end"
        )
    if shape.examples_per_row > 1:
        console.print(f"{where} is packed; written with one example a row")
    shape = dataclasses.replace(shape, examples_per_row=1, row_length=0)
    phases = (*config.phases[:phase], shape, *config.phases[phase + 1 :])
    return dataclasses.replace(config, phases=phases), shape


def _settings(seed: int, data: DataConfig, shape: PhaseConfig) -> dict[str, Any]:
    """Returns the keys of the configuration that decide examples and masks."""
    values = {name: value for name, value in to_dict(data).items() if name != "store"}
    phase: dict[str, Any] = {
        "seq_length": shape.seq_length,
        "max_predictions": shape.predictions,
    }
    if shape.mask_rate_end is not None:
        phase |= {
            "mask_rate_end": shape.mask_rate_end,
            "steps": shape.steps,
            "batch_size": shape.batch_size,  # decides the step of a row
        }
    return flatten({"config": {"seed": seed, "data": values, "phase": phase}})


def _advance(bar: Progress) -> Callable[[int], None]:
    """Returns a function that advances the bar by a number of rows."""
    (task,), start, done = bar.tasks, bar.get_time(), 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        rate = done / max(bar.get_time() - start, 1e-9)
        bar.update(task.id, completed=done, rate=f"{rate:,.0f} rows/s")

    return advance
