"""Pages for people: one HTML file with everything in it, plots as inline SVG."""

import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax import metrics

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2733; background: #fff; }}
h1, h2 {{ line-height: 1.2; }} h2 {{ margin-top: 2.5rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #dde3ea; text-align: left; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
svg {{ max-width: 100%; height: auto; }}
figcaption, .note {{ color: #5a6a7a; }} figure {{ margin: 1rem 0; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


class Page:
    """Collects sections; `save` writes them as one self-contained file."""

    def __init__(self, title: str):
        self._title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Numbers and percentages stand to the right; floats have four significant digits."""
        head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def figure(self, svg: str, caption: str) -> None:
        self._parts.append(f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>")

    def save(self, path: epath.Path) -> None:
        title = html.escape(self._title)
        path.write_text(_PAGE.format(title=title, body="\n".join(self._parts)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:.4g}"
    elif isinstance(value, int):
        value = f"{value:,}"
    elif not str(value).endswith("%"):
        return f"<td>{html.escape(str(value))}</td>"
    return f'<td class="number">{value}</td>'


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    ylabel: str,
    baselines: Mapping[str, float] | None = None,
) -> str:
    """An SVG plot of named (steps, values) lines, with baselines as dashed horizontals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for name, (x, y) in lines.items():
        few = len(x) < 30
        axes.plot(x, y, label=name, linewidth=1.5, marker="o" if few else None, markersize=3)
    for i, (name, value) in enumerate((baselines or {}).items()):
        axes.axhline(value, label=name, linestyle=("--", ":", "-.")[i % 3], color="#888")
    axes.set(xlabel="step", ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def add_training(page: Page, workdir: epath.Path) -> None:
    """Curves and final figures of a run, each objective beside its trivial baselines."""
    train, held_out = metrics.read(workdir, "train"), metrics.read(workdir, "eval")
    if not train or not held_out:
        page.text("No metrics yet.")
        return
    last = held_out[-1]
    page.heading("Held-out text")
    page.text(
        f"After {last['step']:,} steps, on documents the model never saw. A baseline says what is "
        "to be had without reading: token frequencies for masked tokens, the more frequent label "
        "for sentence pairs, and that label for each source apart."
    )
    page.table(
        ("objective", "loss (nats)", "baseline", "accuracy", "baseline ", "source alone"),
        [
            ("masked tokens (MLM)", *_pair(last, "mlm"), ""),
            ("next sentence (NSP)", *_pair(last, "nsp"), f"{last['nsp/source_accuracy']:.1%}"),
        ],
    )
    sources = sorted(k.split("/")[1] for k in last if k.count("/") == 2 and k.endswith("/accuracy"))
    page.table(
        ("source", "NSP accuracy", "more frequent label"),
        [
            (s, *(f"{last[f'nsp/{s}/{key}']:.1%}" for key in ("accuracy", "baseline_accuracy")))
            for s in sources
        ],
    )
    page.heading("Curves")
    for name, title in (("mlm", "Masked tokens"), ("nsp", "Next sentence")):
        for what, unit in (("loss", "loss (nats)"), ("accuracy", "accuracy")):
            key = f"{name}/{what}"
            lines = {"training": _line(train, key), "held-out": _line(held_out, key)}
            baseline = {"baseline": last[f"{name}/baseline_{what}"]}
            page.figure(curves(lines, ylabel=unit, baselines=baseline), f"{title}: {what}")
    page.heading("Throughput")
    page.figure(
        curves({"training": _line(train, "tokens_per_second")}, ylabel="real tokens/s"),
        "Real tokens (padding not counted) a second",
    )


def _pair(record: Mapping[str, float], name: str) -> tuple[float | str, ...]:
    loss, accuracy = (
        (record[f"{name}/{key}"], record[f"{name}/baseline_{key}"]) for key in ("loss", "accuracy")
    )
    return (*loss, *(f"{share:.1%}" for share in accuracy))


def _line(records: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    return [r["step"] for r in records], [r[key] for r in records]
