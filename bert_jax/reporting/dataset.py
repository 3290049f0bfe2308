"""`bert-jax data verify` and `data inspect`: a store's contents and the examples made from it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import rich.text
from etils import epath
from rich.table import Table

from bert_jax.config.schema import Config, DataConfig, PhaseConfig
from bert_jax.data_pipeline.analysis.baselines import tokens_per_document
from bert_jax.data_pipeline.analysis.inspect import (
    Lengths,
    ShownExample,
    Vocabulary,
    count_examples,
    count_groups,
    decode,
)
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.pairing.blocks import dropped
from bert_jax.data_pipeline.store.manifest import SPLITS, bytes_to_verify, read_manifest
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.staging import stage
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count
from bert_jax.reporting import dataset_tables, html, plots, run_facts
from bert_jax.runtime.console import console
from bert_jax.runtime.log import plain
from bert_jax.runtime.program import program
from bert_jax.runtime.versions import version
from bert_jax.storage.host_name import host_name
from bert_jax.storage.progress import byte_bar
from bert_jax.storage.remote import is_remote
from bert_jax.training.batches import phase_batches, read_as

MOST_SLOTS = 100_000_000  # token positions in the rows that `inspect` counts, at most
_STYLES = {
    "special": "dim",
    "plain": "",
    "masked": "bold yellow",
    "random": "bold magenta",
    "kept": "bold green",
}
_COUNTED = {  # label of the horizontal axis of a histogram
    "sentences": "tokens per sentence",
    "documents": "tokens per document",
    "examples": "tokens per example, special tokens included",
    "predictions": "predictions per example",
}
_LABELS: Final = "Labels of the pairs, and the share of the second label"
_LENGTHS: Final = "Lengths in tokens, and predictions per example"


def verify(path: Path | str) -> None:
    """Reads an entire store and prints what was checked; raises UserError if anything is wrong."""
    seen, folder = 0, path
    if is_remote(path):
        folder = stage(str(path), repair=True)
    with byte_bar("verify", bytes_to_verify(read_manifest(folder)), 0, True) as update:

        def watch(read: int) -> None:
            nonlocal seen
            seen += read
            update(seen)

        store = open_store(folder, watch=watch)
        update(bytes_to_verify(store.manifest))
    files = store.manifest["files"]
    size = sum(entry["bytes"] for entry in files.values())
    copied = f", copied to {folder}" if is_remote(path) else ""
    print(f"{path}: no errors found{copied}")
    print(f"  {count(len(files), 'file')}, {size / 1e6:,.1f} MB: size and sha256 of each")
    for split in (store.train, store.held_out):
        print(
            f"  {split.name}: {len(split.tokens):,} ids, all below {store.vocab_size:,}, in "
            f"{count(len(split.sentence_lengths), 'sentence')} of "
            f"{count(len(split.document_lengths), 'document')}; lengths, sources, languages, "
            "counts of every id"
        )
    print("  tokenizer.json: digest, number of entries, special ids; manifest.json: its own digest")


def inspect(
    path: Path | str,
    config: Config,
    *,
    phase: int,
    split_name: str,
    examples: int,
    page: str | None,
    words: str = "",
) -> None:
    """Prints what a store holds and the examples a config makes from it, and writes them as HTML to
    `page`; UserError for no such phase or split, or as `phase_batches`.

    words: that give the config on a command line, if it came from one.
    """
    if not 0 <= phase < len(config.phases):
        raise UserError(f"--phase={phase}: the config has phases 0 to {len(config.phases) - 1}")
    if split_name not in SPLITS:
        raise UserError(f"--split={split_name}: give one of {', '.join(SPLITS)}")
    store = open_store(path, verify=False)
    split = store.train if split_name == "train" else store.held_out
    data, shape = read_as(config, split, config.phases[phase])
    batches = phase_batches(config, store, split, config.phases[phase])
    counts = count_examples(store, batches, MOST_SLOTS, _steps_to_count(shape))
    shown = _first_examples(store, split, batches, shape.batch_size, examples)
    heads = [dataset_tables.head(example, data, store) for example in shown]
    lengths = {
        "sentences": Lengths(np.bincount(split.sentence_lengths)),
        "documents": Lengths(np.bincount(tokens_per_document(split))),
        "examples": Lengths(counts.lengths),
        "predictions": Lengths(counts.predictions),
    }
    tables = {
        "What matters before training": dataset_tables.of_quality(store),
        f"The {split_name} split": dataset_tables.of_groups(count_groups(store, split)),
        _LENGTHS: dataset_tables.of_lengths(lengths),
        f"Rows of epoch 0 of config.phases[{phase}]": dataset_tables.of_rows(
            counts,
            batches.rows_per_epoch,
            batches.fill_rate()[1],
            dropped(split.sentence_lengths, shape.seq_length),
            data,
            shape,
        ),
    }
    if counts.labels is not None:
        tables[_LABELS] = dataset_tables.of_labels(counts.labels, data, store)
    if len(store.held_out.tokens):
        tables["Loss on held-out text from token frequencies alone"] = dataset_tables.of_held_out(
            store
        )
    for title, (header, rows) in tables.items():
        _print_table(title, header, rows)
    for name, distribution in lengths.items():
        _print_bars(name, distribution)
    print_examples(shown, heads)
    if page:
        about = _about(path, split_name, config, words, phase, data)
        steps = _next_steps(path, words)
        _write_page(epath.Path(page), about, steps, tables, lengths, shown, heads)


def _about(
    path: Path | str, split_name: str, config: Config, words: str, phase: int, data: DataConfig
) -> dict[str, str]:
    """The facts at the top of the page."""
    return {
        "store": f"{path}, {split_name} split",
        "config": f"{words or 'of a program'}, phase {phase + 1} of {len(config.phases)}",
        "examples": f"rows of {config.phases[phase].row_tokens} tokens, "
        f"pairing {data.pairing}, masking {data.masking}",
        "when": run_facts.now(),
        "where": f"{host_name()}, bert-jax {version('bert-jax')}",
    }


def _next_steps(path: Path | str, words: str) -> list[tuple[str, str]]:
    """The command that trains on the examples, none for a config of a program."""
    command = f"pretrain {words} --config.data.store={shlex.quote(str(path))} --workdir=run"
    return [("Train on these examples:", f"{program()} {command}")] if words else []


def _steps_to_count(shape: PhaseConfig) -> int | None:
    """Returns those of a phase whose mask rate is that of the step; None: the epoch's."""
    return None if shape.mask_rate_end is None else shape.steps


def _first_examples(
    store: TokenStore, split: Split, batches: Batches, rows: int, examples: int
) -> list[ShownExample]:
    """The first examples of the first batch, decoded: of training, or of one pass over the
    held-out rows, which may be fewer than a batch."""
    trains = split.name == "train"
    make = batches.batch if trains else batches.evaluation_batch
    rows = rows if trains else min(rows, batches.rows_per_epoch)
    vocabulary = Vocabulary(Tokenizer.load(store.tokenizer_path), store.special)
    shown: list[ShownExample] = []
    for row in range(rows if examples else 0):
        shown += decode(make(0, [row]), vocabulary, [row])
        if len(shown) >= examples:
            break
    return shown[:examples]


def _print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", min_width=len(title))
    for column, name in enumerate(header):
        numbers = all(str(row[column])[:1].isdigit() for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row))
    console.print(table)


def _print_bars(title: str, lengths: Lengths) -> None:
    console.print(rich.text.Text(f"{title}: {_COUNTED[title]}", "bold"))
    bins = lengths.bins()
    # Like rich's table borders: ASCII where the terminal lacks block characters.
    block = "#" if console.options.ascii_only else "█"
    most = max((number for _, _, number in bins), default=1)
    for low, high, number in bins:
        name = f"{low:,}" if low == high else f"{low:,}-{high:,}"
        bar = block * round(40 * number / most)
        console.print(rich.text.Text(f"{name:>17} {bar:<40} {number:,}"))


def print_examples(examples: Sequence[ShownExample], heads: Sequence[str]) -> None:
    for example, head in zip(examples, heads, strict=True):
        text = rich.text.Text()
        for token in example.tokens:
            style = f"{_STYLES[token.kind]} {'underline' if token.edge else ''}".strip()
            text.append(" " if token.space else "")
            text.append(token.label, style)
        console.print(rich.text.Text(f"\n{plain(head)}", "bold"))
        console.print(text, soft_wrap=False)


def _write_page(
    file: epath.Path,
    about: Mapping[str, str],
    steps: Sequence[tuple[str, str]],
    tables: Mapping[str, dataset_tables.Rows],
    lengths: Mapping[str, Lengths],
    examples: Sequence[ShownExample],
    heads: Sequence[str],
) -> None:
    page = html.Page(f"Training examples of {about['store']}")
    page.facts(about)
    page.heading("Examples")
    page.examples(examples, heads)
    if steps:
        page.commands(steps)
    for name, (header, rows) in tables.items():
        page.heading(name)
        page.table(header, rows)
    page.heading("Histograms")
    page.figures(
        (plots.histogram(distribution, xlabel=_COUNTED[name]), name)
        for name, distribution in lengths.items()
        if distribution.total
    )
    page.save(file)
    console.print(f"wrote {file}")
