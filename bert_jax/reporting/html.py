"""Pages for people: one HTML file with everything in it, plots as inline SVG."""

import html
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.data_pipeline.storage.remote import write_named
from bert_jax.runtime.console import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bert_jax.data_pipeline.analysis.inspect import Lengths, ShownExample, ShownToken
    from bert_jax.metrics.goodput import Goodput

_MARK = '<meta name="generator" content="bert-jax">'
_PAGE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""
    + _MARK
    + """
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2733; background: #fff; }}
h1, h2 {{ line-height: 1.2; }} h2 {{ margin-top: 2.5rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #dde3ea; text-align: left; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.example {{ border-left: 3px solid #dde3ea; padding-left: 1rem; overflow-wrap: anywhere; }}
.special {{ color: #8a97a5; }} .edge {{ text-decoration: underline; }}
.masked, .random, .kept {{ border-radius: 3px; padding: 0 .2em; }}
.masked {{ background: #fff1c2; }} .random {{ background: #ffd6e4; }}
.kept {{ background: #d8f2dc; }}
svg {{ max-width: 100%; height: auto; }}
figcaption, .note {{ color: #5a6a7a; }} figure {{ margin: 1rem 0; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""
)


class Page:
    """Collects sections; `save` writes them as one self-contained file.

    All text is escaped here, whatever it is and wherever it comes from; only figures are markup.
    """

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

    def examples(self, examples: "Sequence[ShownExample]", heads: Sequence[str]) -> None:
        """Decoded examples under their headings, what is to be predicted in colour."""
        legend = " ".join(
            f'<span class="{kind}">{text}</span>'
            for kind, text in (
                ("masked", "[MASK]→original"),
                ("random", "random→original"),
                ("kept", "kept→original"),
                ("edge", "next to a span"),
            )
        )
        self._parts.append(f'<p class="note">{legend}</p>')
        for example, head in zip(examples, heads, strict=True):
            body = "".join(map(_token, example.tokens))
            self._parts.append(
                f'<div class="example"><p class="note">{html.escape(head)}</p>'
                f'<p dir="auto">{body}</p></div>'
            )

    def save(self, path: epath.PathLike) -> None:
        """Writes the page; an older file is as it was until then.

        Raises:
            StorageError: it cannot be written.
        """
        page = _PAGE.format(title=html.escape(self._title), body="\n".join(self._parts))
        # Halves of characters: of names of files.
        write_named(path, page.encode(errors="backslashreplace"))


def is_page(path: epath.PathLike) -> bool:
    """Whether a file is a page that was written here, and may be written anew."""
    with epath.Path(path).open("rb") as file:
        return _MARK.encode() in file.read(1000)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:.4g}"
    elif isinstance(value, int):
        value = f"{value:,}"
    elif not str(value).endswith("%"):
        return f"<td>{html.escape(str(value))}</td>"
    return f'<td class="number">{html.escape(str(value))}</td>'


def _token(token: "ShownToken") -> str:
    text = f"{token.text}→{token.original}" if token.original else token.text
    kinds = [token.kind, *(["edge"] if token.edge else [])]
    space, shown = " " if token.space else "", html.escape(text)
    return space + (
        shown if kinds == ["plain"] else f'<span class="{" ".join(kinds)}">{shown}</span>'
    )


def histogram(lengths: "Lengths", *, xlabel: str) -> str:
    """An SVG bar plot of how many things have a length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.add_subplot()
    bins = lengths.bins(24)
    names = [f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b, _ in bins]
    axes.bar(range(len(bins)), [count for _, _, count in bins], width=0.9)
    axes.set_xticks(range(len(bins)), names, rotation=45, ha="right", fontsize=8)
    axes.set(xlabel=xlabel, ylabel="how many")
    return _svg(figure)


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
    for name, (x, y) in _plain(lines).items():
        few = len(x) < 30
        axes.plot(x, y, label=name, linewidth=1.5, marker="o" if few else None, markersize=3)
    for i, (name, value) in enumerate(_plain(baselines or {}).items()):
        axes.axhline(value, label=name, linestyle=("--", ":", "-.")[i % 3], color="#888")
    axes.set(xlabel="step", ylabel=ylabel)
    axes.legend(frameon=False)
    return _svg(figure)


def _plain(named: Mapping[str, Any]) -> dict[str, Any]:
    """Names as matplotlib draws them literally: a formula in one, or a _ before it, means nothing
    here, and control characters would not be XML."""
    shown = {name: plain(name).replace("$", r"\$") for name in named}
    return {
        f" {text}" if text.startswith("_") else text: named[name] for name, text in shown.items()
    }


def _svg(figure: "Figure") -> str:
    """The figure in the house's style, as text that stands inside a page."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    out = io.StringIO()
    with warnings.catch_warnings():  # of letters that the font does not have
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


# Names of the objectives' metrics, and what people call them; a run has some of them.
_OBJECTIVES = {
    "mlm": "Masked tokens (MLM)",
    "nsp": "Next sentence (NSP)",
    "sop": "Sentence order (SOP)",
    "sbo": "Span boundary (SBO)",
}


def add_training(
    page: Page, workdir: epath.Path, *, token_baselines: Mapping[str, float] | None = None
) -> None:
    """Curves and final figures of a run, each objective beside its trivial baselines.

    Args:
        token_baselines: more lines for the plot of the masked tokens' loss, such as
            `bert_jax.data_pipeline.analysis.baselines.bigram_loss`, in nats.
    """
    from bert_jax.metrics import records as metrics

    train, held_out = metrics.read(workdir, "train"), metrics.read(workdir, "eval")
    if not train or not held_out:
        page.text("No metrics yet.")
        return
    last = held_out[-1]
    there = {name: title for name, title in _OBJECTIVES.items() if f"{name}/loss" in last}
    page.heading("Held-out text")
    page.text(
        f"After {last['step']:,} steps, on documents the model never saw. A baseline says what is "
        "to be had without reading: token frequencies for masked tokens, the more frequent label "
        "for sentence pairs, and that label for each source apart."
    )
    alone = {name: last.get(f"{name}/source_accuracy") for name in there}
    page.table(
        ("objective", "loss (nats)", "baseline", "accuracy", "baseline ", "source alone"),
        [
            (title, *_pair(last, name), "" if alone[name] is None else f"{alone[name]:.1%}")
            for name, title in there.items()
        ],
    )
    for name in ("nsp", "sop"):
        _add_sources(page, last, name)
    page.heading("Curves")
    for name, title in there.items():
        for what, unit in (("loss", "loss (nats)"), ("accuracy", "accuracy")):
            key = f"{name}/{what}"
            lines = {"training": _line(train, key), "held-out": _line(held_out, key)}
            baselines = {"baseline": last[f"{name}/baseline_{what}"]}
            if key == "mlm/loss":
                baselines |= token_baselines or {}
            page.figure(curves(lines, ylabel=unit, baselines=baselines), f"{title}: {what}")
    page.heading("Throughput")
    page.figure(
        curves({"training": _line(train, "tokens_per_second")}, ylabel="real tokens/s"),
        "Real tokens (padding not counted) a second",
    )


def add_goodput(page: Page, found: "Goodput") -> None:
    """Where the time of a run went: a bar and a table; nothing where no time is recorded."""
    from bert_jax.metrics import goodput

    if not found.wall:
        return
    page.heading("Where the time went")
    page.text(f"Goodput: {found.share:.1%} of the time went into steps that count.")
    parts = {goodput.CAUSES[cause]: spent for cause, spent in found.seconds.items() if spent > 0}
    page.figure(stacked_bar(parts), "Shares of the time since the first start")
    page.table(*goodput.table(found))


def stacked_bar(parts: Mapping[str, float]) -> str:
    """An SVG bar of shares, named below it; `parts` add up to more than 0."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.9), layout="constrained")
    axes = figure.add_subplot()
    colours, left, whole = colormaps["tab20"], 0.0, sum(parts.values())
    for i, (name, part) in enumerate(_plain(parts).items()):
        share = part / whole
        axes.barh([0], [share], left=left, label=f"{name} {share:.1%}", color=colours(i % 20))
        left += share
    axes.set(xlim=(0, 1), yticks=[])
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.25), fontsize=8)
    return _svg(figure)


def stacked_bars(rows: Mapping[str, Mapping[str, float]], *, xlabel: str) -> str:
    """An SVG of named bars from top to bottom, each of named pieces that are alike in all bars."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    rows = {name: _plain(row) for name, row in _plain(rows).items()}
    figure = Figure(figsize=(8, 0.8 + 0.32 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    colours, left = colormaps["tab10"], dict.fromkeys(rows, 0.0)
    pieces = dict.fromkeys(piece for row in rows.values() for piece in row)
    for i, piece in enumerate(pieces):
        widths = [row.get(piece, 0.0) for row in rows.values()]
        axes.barh(list(rows), widths, left=list(left.values()), label=piece, color=colours(i % 10))
        left = {name: left[name] + width for name, width in zip(rows, widths, strict=True)}
    axes.invert_yaxis()
    axes.set(xlabel=xlabel)
    figure.legend(loc="outside lower center", frameon=False, ncols=len(pieces), fontsize=8)
    return _svg(figure)


def _add_sources(page: Page, record: Mapping[str, float], name: str) -> None:
    """Accuracy of a pair objective for each source apart, if the record has it."""
    first, last = f"{name}/", "/baseline_accuracy"
    sources = sorted(
        key.removeprefix(first).removesuffix(last)
        for key in record
        if key.startswith(first) and key.endswith(last) and len(key) > len(first + last)
    )
    if sources:
        page.table(
            ("source", f"{name.upper()} accuracy", "more frequent label"),
            [
                (s, *(f"{record[f'{name}/{s}{key}']:.1%}" for key in ("/accuracy", last)))
                for s in sources
            ],
        )


def _pair(record: Mapping[str, float], name: str) -> tuple[float | str, ...]:
    loss, accuracy = (
        (record[f"{name}/{key}"], record[f"{name}/baseline_{key}"]) for key in ("loss", "accuracy")
    )
    return (*loss, *(f"{share:.1%}" for share in accuracy))


def _line(records: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the records that have it: a loss that is not finite is left out."""
    there = [r for r in records if key in r]
    return [r["step"] for r in there], [r[key] for r in there]
