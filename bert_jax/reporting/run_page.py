"""The HTML page of a run: its curves, sources and goodput."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etils import epath

from bert_jax.errors import count
from bert_jax.reporting.html import Page
from bert_jax.reporting.plots import curves, stacked_bar

if TYPE_CHECKING:
    from bert_jax.metrics.goodput import Goodput


def add_training(
    page: Page, path: epath.Path, *, token_baselines: Mapping[str, float] | None = None
) -> None:
    """Adds curves and final metrics of a run, each objective with its trivial baselines; before the
    first evaluation those of training.

    Args:
        path: the run's records, `Workdir.metrics`.
        token_baselines: name -> nats; further lines in the plot of the MLM loss, such as
            `bert_jax.data_pipeline.analysis.baselines.bigram_loss`.
    """
    from bert_jax.metrics import run_records as metrics
    from bert_jax.objectives.masked_lm import MASKED_LM
    from bert_jax.reporting import held_out_table

    train, evals = metrics.read_records(path, "train"), metrics.read_records(path, "eval")
    if not train:
        page.text("No metrics yet.")
        return
    last = (evals or train)[-1]
    page.heading("Results on held-out text" if evals else "Results on the text trained on")
    after = f"After {count(last['step'], 'step')}"
    measured = metrics.task_metrics(last)
    held = "on the held-out examples" if measured else "on documents held out from training"
    text = held if evals else "not evaluated on held-out text yet"
    page.text(f"{after}, {text}. {held_out_table.explanation(last)}")
    page.table(*held_out_table.table(last))
    if measured:
        page.table(("metric", "value"), [(k, metrics.shown(v)) for k, v in measured.items()])
    titles = held_out_table.titles(last)
    for name in titles:
        _add_sources(page, last, name)
    page.heading("Curves")
    plots = []
    for name, title in titles.items():
        for what, unit in (("loss", held_out_table.unit(last)), ("accuracy", "accuracy")):
            key = f"{name}/{what}"
            if key not in last:
                continue
            lines = {"training": _line(train, key)}
            if evals:
                lines["held-out"] = _line(evals, key)
            trivial = last.get(f"{name}/baseline_{what}")
            baselines = {} if trivial is None else {"baseline": trivial}
            if key == f"{MASKED_LM.name}/loss":
                baselines |= token_baselines or {}
            plots.append((curves(lines, ylabel=unit, baselines=baselines), f"{title}: {what}"))
    for name in measured:
        line = _line(evals, f"{metrics.TASK_METRIC}{name}")
        plots.append((curves({"held-out": line}, ylabel=name), f"Held-out {name}"))
    if attention := _attention(evals):
        caption = (
            "Attention on neighbours: the largest share that a head pays to the token on one side"
        )
        plots.append((curves(attention, ylabel="share of attention"), caption))
    speed = {"training": _line(train, "tokens_per_second")}
    plots.append((curves(speed, ylabel="tokens per second"), "Throughput, padding not counted"))
    page.figures(plots)


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


def _attention(
    evals: Sequence[Mapping[str, float]],
) -> dict[str, tuple[list[float], list[float]]]:
    """Returns layer -> steps and attention on neighbouring tokens, if evaluations measured it."""
    from bert_jax.metrics.neighbor_attention import by_layer

    lines: dict[str, tuple[list[float], list[float]]] = {}
    for record in evals:
        for layer, share in by_layer(record).items():
            steps, shares = lines.setdefault(f"layer {layer}", ([], []))
            steps.append(record["step"])
            shares.append(share)
    return lines


def _add_sources(page: Page, record: Mapping[str, float], name: str) -> None:
    """Adds the accuracy of a pair objective per source, if there are several."""
    first, last = f"{name}/", "/baseline_accuracy"
    sources = sorted(
        key.removeprefix(first).removesuffix(last)
        for key in record
        if key.startswith(first) and key.endswith(last) and len(key) > len(first + last)
    )
    if len(sources) > 1:
        page.table(
            ("source", f"{name.upper()} accuracy", "majority label"),
            [
                (s, *(f"{record[f'{name}/{s}{key}']:.1%}" for key in ("/accuracy", last)))
                for s in sources
            ],
        )


def _line(records: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the records that have the key; a non-finite loss is missing."""
    logged = [r for r in records if key in r]
    return [r["step"] for r in logged], [r[key] for r in logged]
