"""`bert-jax data batch`: the batch that a step of a run trained on."""

from typing import Final

from etils import epath

from bert_jax.config.recorded import settings_of
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.analysis.inspect import Vocabulary, decode
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count
from bert_jax.reporting import dataset_tables
from bert_jax.reporting.dataset import print_examples
from bert_jax.runtime.console import console
from bert_jax.storage.npz_file import names_in, npz_bytes
from bert_jax.storage.outputs import OutputKind, write_output
from bert_jax.training.batches import phase_batches
from bert_jax.workdir import description
from bert_jax.workdir.find_store import find_store
from bert_jax.workdir.inputs import inputs_of_model
from bert_jax.workdir.layout import Workdir

_NAMES: Final = ("input_ids", "example_ids", "position_ids", "masked_positions", "masked_labels")


def batch(
    workdir: str, step: int, *, store_path: str | None, rows: str | None, out: str | None
) -> None:
    """Prints the batch that a step of a run trained on; with `out`, also writes it as .npz.

    Args:
        step: counted from 0: the batch of update `step` + 1.
        rows: "FIRST:END" or one number; None prints 4 and writes all.

    Raises:
        UserError: the workdir holds no run, there are no such step or rows, or the store differs.
    """
    config, store = open_run(Workdir.open(workdir), store_path)
    index, local = config.phase_at(step)
    phase = config.phases[index]
    chosen = parse_rows(rows, phase.batch_size)
    arrays = phase_batches(config, store, store.train, phase).batch(local, chosen)
    console.print(
        f"step {step}: step {local} of config.phases[{index}], {count(phase.batch_size, 'row')}"
    )
    vocabulary = Vocabulary(Tokenizer.load(store.tokenizer_path), store.special)
    few = len(chosen) if rows else min(4, len(chosen))
    shown = decode(arrays, vocabulary, chosen[:few])
    print_examples(shown, [dataset_tables.head(example, config.data, store) for example in shown])
    if out:
        inputs = [*inputs_of_model(workdir), store.path]
        write_output(out, npz_bytes(arrays), BATCH, inputs=inputs)
        console.print(f"\nwrote {count(len(chosen), 'row')} to {out}: {', '.join(arrays)}")


def _is_batch(path: epath.PathLike) -> bool:
    """Returns whether a file is a batch written by `batch`, which may be overwritten: other
    programs, too, write arrays with the name of the first of these."""
    try:
        return names_in(path) >= set(_NAMES)
    except ValueError:
        return False


BATCH: Final = OutputKind("batch", _is_batch)


def open_run(workdir: Workdir, store_path: str | None = None) -> tuple[Config, TokenStore]:
    """Returns a run's configuration and the store it trains on; UserError if the workdir holds no
    run, or the store is not the run's. `store_path`: of the store, if it was moved."""
    run = description.read_description(workdir)
    config = settings_of(run)
    if config.task.name:
        raise UserError(
            f"{workdir}: fine-tuned for {config.task.name}; only batches of pretraining are shown"
        )
    store = open_store(store_path or find_store(workdir, config.data.store, run["data"]))
    for name, digest in (("tokenizer", store.tokenizer_digest), ("train", store.train.digest)):
        trained_on = str(run["data"].get(name))
        if trained_on != digest:
            raise UserError(
                f"{store.path}: its {name} digest is {digest[:12]}…, the run's {trained_on[:12]}…: "
                "not the store that the run trained on; give that one with --store"
            )
    return config, store


def parse_rows(text: str | None, batch_size: int) -> list[int]:
    """Row numbers from "0:4" or "7"; None selects all rows."""
    first, colon, end = (text or f"0:{batch_size}").partition(":")
    try:
        start = int(first)
        rows = range(start, int(end) if colon else start + 1)
    except ValueError:
        rows = range(0)
    if not rows or rows[0] < 0 or rows[-1] >= batch_size:
        raise UserError(f"--rows={text}: give FIRST:END between 0 and {batch_size}, such as 0:4")
    return list(rows)
