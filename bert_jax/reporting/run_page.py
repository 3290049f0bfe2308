"""The HTML page of a run: its curves, sources and goodput."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etils import epath

from bert_jax.reporting.plots import curves, stacked_bar

if TYPE_CHECKING:
    from bert_jax.metrics.goodput import Goodput
from bert_jax.reporting.html import Page


def add_training(
    page: Page, path: epath.Path, *, token_baselines: Mapping[str, float] | None = None
) -> None:
    """Adds curves and final metrics of a run, each objective with its trivial baselines.

    Args:
        path: the run's records, `Workdir.metrics`.
        token_baselines: name -> nats; further lines in the plot of the MLM loss, such as
            `bert_jax.data_pipeline.analysis.baselines.bigram_loss`.
    """
    from bert_jax.metrics import records as metrics
    from bert_jax.objectives.masked_lm import MASKED_LM
    from bert_jax.objectives.registry import OBJECTIVES

    train, held_out = metrics.read(path, "train"), metrics.read(path, "eval")
    if not train or not held_out:
        page.text("No metrics yet.")
        return
    last = held_out[-1]
    titles = {name: objective.title for name, objective in OBJECTIVES.items()}
    present = {name: titles.get(name, name) for name in metrics.objectives_in(last)}
    page.heading("Held-out text")
    page.text(
        f"After {last['step']:,} steps, on documents the model never saw. A baseline is the result "
        "without a model: token frequencies for masked tokens, the majority label for sentence "
        "pairs, and the majority label per source."
    )
    page.table(
        ("objective", "loss (nats)", "baseline", "accuracy", "baseline ", "source alone"),
        [(title, *_row(last, name)) for name, title in present.items()],
    )
    for name in present:
        _add_sources(page, last, name)
    page.heading("Curves")
    for name, title in present.items():
        for what, unit in (("loss", "loss (nats)"), ("accuracy", "accuracy")):
            key = f"{name}/{what}"
            lines = {"training": _line(train, key), "held-out": _line(held_out, key)}
            baselines = {"baseline": last[f"{name}/baseline_{what}"]}
            if key == f"{MASKED_LM.name}/loss":
                baselines |= token_baselines or {}
            page.figure(curves(lines, ylabel=unit, baselines=baselines), f"{title}: {what}")
    _add_attention(page, held_out)
    page.heading("Throughput")
    page.figure(
        curves({"training": _line(train, "tokens_per_second")}, ylabel="real tokens/s"),
        "Real tokens (padding not counted) a second",
    )


def add_goodput(page: Page, spent: "Goodput") -> None:
    """Adds the wall time of a run by cause, as a bar and a table; nothing without recorded time."""
    from bert_jax.metrics import goodput

    if not spent.wall:
        return
    page.heading("Where the time went")
    page.text(f"Goodput: {spent.share:.1%} of the time was spent on productive steps.")
    parts = {goodput.CAUSES[cause]: s for cause, s in spent.seconds.items() if s > 0}
    page.figure(stacked_bar(parts), "Shares of the time since the first start")
    page.table(*goodput.table(spent))


def _add_attention(page: Page, held_out: Sequence[Mapping[str, float]]) -> None:
    """Adds the attention on neighbouring tokens, if evaluations measured it."""
    from bert_jax.metrics.neighbor_attention import by_layer

    lines: dict[str, tuple[list[float], list[float]]] = {}
    for record in held_out:
        for layer, share in by_layer(record).items():
            steps, shares = lines.setdefault(f"layer {layer}", ([], []))
            steps.append(record["step"])
            shares.append(share)
    if lines:
        page.heading("Attention on neighbours")
        page.figure(
            curves(lines, ylabel="share of attention"),
            "The largest share that one head of a layer pays to the token on one side",
        )


def _add_sources(page: Page, record: Mapping[str, float], name: str) -> None:
    """Adds the accuracy of a pair objective per source, if the record has it."""
    first, last = f"{name}/", "/baseline_accuracy"
    sources = sorted(
        key.removeprefix(first).removesuffix(last)
        for key in record
        if key.startswith(first) and key.endswith(last) and len(key) > len(first + last)
    )
    if sources:
        page.table(
            ("source", f"{name.upper()} accuracy", "majority label"),
            [
                (s, *(f"{record[f'{name}/{s}{key}']:.1%}" for key in ("/accuracy", last)))
                for s in sources
            ],
        )


def _row(record: Mapping[str, float], name: str) -> tuple[float | str, ...]:
    """The loss, its baseline, the accuracy and its two baselines of an objective."""
    keys = ("accuracy", "baseline_accuracy", "source_accuracy")
    shares = [f"{record[f'{name}/{key}']:.1%}" if f"{name}/{key}" in record else "" for key in keys]
    return record[f"{name}/loss"], record[f"{name}/baseline_loss"], *shares


def _line(records: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the records that have the key; a non-finite loss is missing."""
    logged = [r for r in records if key in r]
    return [r["step"] for r in logged], [r[key] for r in logged]
