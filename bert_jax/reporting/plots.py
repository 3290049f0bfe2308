"""Plots as SVG."""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bert_jax.runtime.log import plain

if TYPE_CHECKING:
    from bert_jax.data_pipeline.analysis.inspect import Lengths


def histogram(lengths: "Lengths", *, xlabel: str) -> str:
    """An SVG histogram of lengths."""
    axes = _axes(2.6)
    bins = lengths.bins(16)
    names = [f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b, _ in bins]
    axes.bar(range(len(bins)), [count for _, _, count in bins], width=0.9)
    axes.set_xticks(range(len(bins)), names, rotation=45, ha="right", fontsize=8)
    axes.set(xlabel=xlabel, ylabel="count")
    return _svg(axes)


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    ylabel: str,
    baselines: Mapping[str, float] | None = None,
    faint: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    log: bool = False,
) -> str:
    """An SVG plot of named (steps, values) lines, with baselines as dashed horizontal lines.

    Args:
        faint: second lines of some names, thin and in the colours of the first.
        log: the y axis is logarithmic, if a value is above 0.
    """
    axes = _axes(3.2)
    behind = _plain(faint or {})
    for name, (x, y) in _plain(lines).items():
        few = len(x) < 30
        marker = "o" if few else None
        (line,) = axes.plot(x, y, label=name, linewidth=1.5, marker=marker, markersize=3)
        if name in behind:
            axes.plot(*behind[name], color=line.get_color(), linewidth=1, alpha=0.6)
    if log and any(value > 0 for _, values in lines.values() for value in values):
        from matplotlib.ticker import LogFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    for i, (name, value) in enumerate(_plain(baselines or {}).items()):
        axes.axhline(value, label=name, linestyle=("--", ":", "-.")[i % 3], color="#888")
    axes.set(xlabel="step", ylabel=ylabel)
    axes.xaxis.get_major_locator().set_params(integer=True)  # a step is whole
    axes.legend(frameon=False)
    return _svg(axes)


def bands(
    lines: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]],
    *,
    xlabel: str,
    ylabel: str,
    log: bool = False,
) -> str:
    """An SVG plot of the means of named (x, values of each run at x) lines, with a band from the
    lowest to the highest run; a line of one x is a point with a bar.

    log: the x axis is logarithmic, with a tick at each x.
    """
    from matplotlib.transforms import offset_copy

    axes = _axes(3.6)
    for number, (name, (x, runs)) in enumerate(_plain(lines).items()):
        means = [sum(values) / len(values) for values in runs]
        if len(x) == 1:  # no line: a point with a bar, beside those of the other names
            place = offset_copy(axes.transData, axes.figure, x=8 * number, units="points")
            bar = [[means[0] - min(runs[0])], [max(runs[0]) - means[0]]]
            axes.errorbar(x, means, bar, label=name, fmt="o", capsize=3, transform=place)
            axes.update_datalim([(x[0], min(runs[0])), (x[0], max(runs[0]))])
            axes.autoscale_view()
            continue
        marker = "o" if len(x) < 30 else None
        (line,) = axes.plot(x, means, label=name, linewidth=1.5, marker=marker, markersize=3)
        low, high = [*map(min, runs)], [*map(max, runs)]
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    if log:
        ticks = sorted({place for x, _ in lines.values() for place in x})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{place:,}" for place in ticks])
        axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    # Below the plot, since bands leave no room in it.
    axes.figure.legend(loc="outside lower center", frameon=False, ncols=3, fontsize=9)
    return _svg(axes)


def intervals(rows: Mapping[str, tuple[float, float, float]], *, xlabel: str) -> str:
    """An SVG of named (value, low, high) bars around zero, from top to bottom."""
    axes = _axes(0.9 + 0.36 * len(rows))
    for number, (value, low, high) in enumerate(rows.values()):
        axes.barh(number, value, height=0.55, color="C0", alpha=0.6)
        axes.plot([low, high], [number, number], color="#1c2733", linewidth=1.5)
    axes.axvline(0, color="#888", linewidth=1)
    axes.set_yticks(range(len(rows)), list(_plain(rows)))
    axes.invert_yaxis()
    axes.set(xlabel=xlabel)
    return _svg(axes)


def _plain(named: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with names that matplotlib draws literally: escapes mathtext and a leading "_",
    and replaces control characters, which are not valid XML."""
    shown = {name: plain(name).replace("$", r"\$") for name in named}
    return {
        f" {text}" if text.startswith("_") else text: named[name] for name, text in shown.items()
    }


def _axes(height: float) -> Any:
    """The axes of a new figure, `height` inches high."""
    from matplotlib.figure import Figure  # here: importing it takes a second

    return Figure(figsize=(5, height), layout="constrained").add_subplot()


def _svg(axes: Any) -> str:
    """Styles the figure and returns it as an <svg> element to embed in a page."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    out = io.StringIO()
    with warnings.catch_warnings():  # about glyphs missing from the font
        warnings.simplefilter("ignore", UserWarning)
        axes.figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def stacked_bar(parts: Mapping[str, float]) -> str:
    """An SVG stacked bar of shares with a legend; `parts` add up to more than 0."""
    from matplotlib import colormaps

    axes = _axes(1.2 + 0.12 * len(parts))
    colours, left, total = colormaps["tab20"], 0.0, sum(parts.values())
    for i, (name, part) in enumerate(_plain(parts).items()):
        share = part / total
        axes.barh([0], [share], left=left, label=f"{name} {share:.1%}", color=colours(i % 20))
        left += share
    axes.set(xlim=(0, 1), yticks=[])
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.figure.legend(loc="outside lower center", frameon=False, ncols=2, fontsize=9)
    return _svg(axes)


def stacked_bars(rows: Mapping[str, Mapping[str, float]], *, xlabel: str) -> str:
    """An SVG of named horizontal stacked bars, from top to bottom; pieces of one name share a
    colour."""
    rows = {name: _plain(row) for name, row in _plain(rows).items()}
    axes = _axes(0.8 + 0.32 * len(rows))
    left = [0.0] * len(rows)
    pieces = dict.fromkeys(piece for row in rows.values() for piece in row)
    for i, piece in enumerate(pieces):
        widths = [row.get(piece, 0.0) for row in rows.values()]
        axes.barh(list(rows), widths, left=left, label=piece, color=f"C{i}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel=xlabel, xlim=(0, 1.05 * max(left)))
    axes.figure.legend(loc="outside lower center", frameon=False, ncols=len(pieces), fontsize=9)
    return _svg(axes)
