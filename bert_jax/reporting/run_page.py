"""Parts of the HTML page of a run, or of several over each other: curves, sources, hidden words and
goodput."""

# Over 300 lines: the tables and curves of one page, from the same records.

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bert_jax.errors import count
from bert_jax.metrics import run_records as metrics
from bert_jax.metrics.fill_records import Filled, read_fills, steps_of
from bert_jax.reporting.html import Marked, Page, Parts
from bert_jax.reporting.plots import curves, stacked_bar

if TYPE_CHECKING:
    from etils import epath

    from bert_jax.metrics.goodput import Goodput

_POINTS: Final = 400  # of a line: more are not seen, and a page has many lines
_COLUMNS: Final = 7  # steps of a table of guesses
# Last part of a key of a "train" record -> unit, caption, and whether its axis is logarithmic.
_OF_STEPS: Final = {
    "kl": ("nats", "Divergence from the teacher", False),
    "agreement": ("share", "First guesses that are the teacher's", False),
    "cosine": ("cosine", "Last states and the teacher's", False),
    "teacher_loss": ("loss", "Divergence from the teacher", False),
    "teacher_agreement": ("share", "First guesses that are the teacher's", False),
    "learning_rate": ("learning rate", "Learning rate", False),
    "grad_norm": ("norm", "Norm of the gradients before clipping", True),
    "tokens_per_second": ("tokens per second", "Throughput, padding not counted", False),
}

Record = Mapping[str, Any]
Line = tuple[list[float], list[float]]  # steps and values


@dataclasses.dataclass(frozen=True)
class Logged:
    """The records of a run that a page is made from."""

    train: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    filled: list[Filled]
    compared: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: "epath.Path") -> "Logged":
        """path: of the records, `Workdir.metrics`."""
        return cls.of([*metrics.records(path)])

    @classmethod
    def of(cls, logged: Sequence[dict[str, Any]]) -> "Logged":
        """logged: all records of the run."""
        train, evals = (metrics.of_kind(logged, kind) for kind in ("train", "eval"))
        return cls(train, evals, read_fills(logged), metrics.compared(logged))

    @property
    def last(self) -> dict[str, Any]:
        """The last evaluation, before the first the last record of training; empty if none."""
        return [{}, *self.train[-1:], *self.evals[-1:]][-1]


def add_training(
    page: Page, logged: Logged, *, token_baselines: Mapping[str, float] | None = None
) -> None:
    """Adds curves and final metrics of a run, each objective with its trivial baselines; before the
    first evaluation those of training.

    Args:
        logged: the run's records.
        token_baselines: name -> nats; further lines in the plot of the MLM loss, such as
            `bert_jax.data_pipeline.analysis.baselines.bigram_loss`.
    """
    from bert_jax.reporting import held_out_table

    last = logged.last
    if not logged.train:
        page.text("No metrics yet.")
        return
    page.heading("Results on held-out text" if logged.evals else "Results on the text trained on")
    after = f"After {count(last['step'], 'step')}"
    measured = metrics.task_metrics(last)
    held = "on the held-out examples" if measured else "on documents held out from training"
    text = held if logged.evals else "not evaluated on held-out text yet"
    page.text(f"{after}, {text}. {held_out_table.explanation(last)}")
    page.table(*held_out_table.table(last))
    if measured:
        beside = logged.compared
        rows = [
            (k, metrics.shown(v), *(_value(row, k) for row in beside.values()))
            for k, v in measured.items()
        ]
        page.table(("metric", "value", *beside), rows)
    for name in held_out_table.titles(last):
        _add_sources(page, last, name)
    page.heading("Curves")
    add_curves(page, {"": logged}, token_baselines=token_baselines)


def _value(row: Mapping[str, Any], name: str) -> str:
    return metrics.shown(row[name]) if name in row else ""


def add_curves(
    page: Page,
    runs: Mapping[str, Logged],
    *,
    token_baselines: Mapping[str, float] | None = None,
) -> None:
    """Adds the curves of runs by name, several over each other: losses and accuracies with the
    baseline that all have, of sources where recorded, metrics of a task, attention, the learning
    rate, the gradient norm and the speed."""
    page.figures(
        (curves(**plot), caption)
        for plots in (_objectives(runs, token_baselines or {}), _sources(runs), _others(runs))
        for plot, caption in plots
    )


def _objectives(
    runs: Mapping[str, Logged], token_baselines: Mapping[str, float]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the arguments of `curves` and the caption of each plot of an objective."""
    from bert_jax.objectives.masked_lm import MASKED_LM
    from bert_jax.reporting import held_out_table

    lasts = [logged.last for logged in runs.values()]
    titles = {name: title for last in lasts for name, title in held_out_table.titles(last).items()}
    for name, title in titles.items():
        for what, ylabel in (("loss", _unit(runs)), ("accuracy", "accuracy")):
            key = f"{name}/{what}"
            if not any(key in last for last in lasts):
                continue
            trivial = {last[k] for last in lasts if (k := f"{name}/baseline_{what}") in last}
            baselines = {"baseline": trivial.pop()} if len(trivial) == 1 else {}
            if key == f"{MASKED_LM.name}/loss":
                baselines |= token_baselines
            plot = {**_lines(runs, key), "ylabel": ylabel, "baselines": baselines}
            yield plot, f"{title}: {what}"


def _unit(runs: Mapping[str, Logged]) -> str:
    from bert_jax.reporting.held_out_table import unit

    return next((unit(one.last) for one in runs.values() if one.last), "")


def _lines(runs: Mapping[str, Logged], key: str) -> dict[str, Any]:
    """Returns the lines of a plot: training and held-out of one run; of several held-out, with
    training faint behind it."""
    trained = {name: _line(logged.train, key) for name, logged in runs.items()}
    held_out = {name: _line(logged.evals, key) for name, logged in runs.items()}
    if len(runs) == 1:
        (train,), (evals,) = trained.values(), held_out.values()
        return {"lines": {"training": train} | ({"held-out": evals} if evals[0] else {})}
    shown = {name: line if line[0] else trained[name] for name, line in held_out.items()}
    behind = {name: trained[name] for name, line in held_out.items() if line[0]}
    return {"lines": _drawn(shown), "faint": _drawn(behind)}


def _sources(runs: Mapping[str, Logged]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields a plot of all sources of one run, or of each source of several, for each objective and
    measure that is recorded of sources: "nsp/books/accuracy"."""
    for name, what in _measured_of_sources(runs):
        keys = sorted({k for r in runs.values() for k in r.last if _source(k, name, what)})
        by_source = {
            _source(key, name, what): {
                run: _line(logged.evals or logged.train, key) for run, logged in runs.items()
            }
            for key in keys
        }
        title, ylabel = f"{name.upper()} {what}", _unit(runs) if what == "loss" else what
        if len(by_source) < 2:  # the only source is the text
            continue
        if len(runs) == 1:
            lines = {source: line for source, own in by_source.items() for line in own.values()}
            yield {"lines": _drawn(lines), "ylabel": ylabel}, f"{title} by source"
            continue
        for source, own in by_source.items():
            yield {"lines": _drawn(own), "ylabel": ylabel}, f"{title} in {source}"


def _measured_of_sources(runs: Mapping[str, Logged]) -> list[tuple[str, str]]:
    names = dict.fromkeys(n for r in runs.values() for n in metrics.objectives_in(r.last))
    return [(name, what) for name in names for what in ("loss", "accuracy")]


def _source(key: str, name: str, what: str) -> str:
    """Returns the source in a key such as "nsp/books/accuracy"; "" if it has none."""
    first, last = f"{name}/", f"/{what}"
    inside = key.startswith(first) and key.endswith(last) and len(key) > len(first + last) - 1
    return key[len(first) : -len(last)] if inside else ""


def _others(runs: Mapping[str, Logged]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the plots of a task's metrics, of attention, and of `_OF_STEPS`."""
    own = "held-out" if len(runs) == 1 else ""
    names = dict.fromkeys(n for r in runs.values() for n in metrics.task_metrics(r.last))
    for name in names:
        key = f"{metrics.TASK_METRIC}{name}"
        lines = {own or run: _line(logged.evals, key) for run, logged in runs.items()}
        beside = next(iter(runs.values())).compared if len(runs) == 1 else {}
        baselines = {row: of[name] for row, of in beside.items() if name in of}
        drawn = {"lines": _drawn(lines), "ylabel": name, "baselines": baselines}
        yield drawn, f"Held-out {name}"
    if len(runs) == 1:
        (logged,) = runs.values()
        if attention := _attention(logged.evals):
            caption = (
                "Attention on neighbours: the largest share that a head pays to the token on one "
                "side"
            )
            yield {"lines": attention, "ylabel": "share of attention"}, caption
    own = "training" if len(runs) == 1 else ""
    lasts = [logged.train[-1] for logged in runs.values() if logged.train]
    for what, (unit, caption, log) in _OF_STEPS.items():
        for key in dict.fromkeys(k for last in lasts for k in last if k.split("/")[-1] == what):
            lines = _drawn({own or run: _line(logged.train, key) for run, logged in runs.items()})
            trivial = {last[k] for last in lasts if (k := _baseline(key)) in last}
            baselines = {"baseline": trivial.pop()} if len(trivial) == 1 else {}
            if lines:
                plot = {"lines": lines, "ylabel": unit, "log": log, "baselines": baselines}
                yield plot, caption


def _baseline(key: str) -> str:
    """Returns the key of the same figure without reading the text."""
    name, slash, what = key.rpartition("/")
    return f"{name}{slash}baseline_{what}"


def add_fills(page: Page, filled: Sequence[Filled]) -> None:
    """Adds the first guesses for hidden words over the steps of a run; nothing without any."""
    steps = _some(steps_of(filled))
    if not steps:
        return
    header = ("sentence", *(f"step {step:,}" for step in steps))
    page.table(header, [(_shown(one), *(_guess(one, step) for step in steps)) for one in filled])


def _shown(one: Filled) -> Parts:
    return [one.before, Marked(one.word, "masked"), one.after]


def _guess(one: Filled, step: int) -> Parts:
    """Returns the first guess of a step, marked if it is the word; nothing if there is none."""
    for token, probability in one.by_step.get(step, [])[:1]:
        text = f"{token} {probability:.0%}"
        return [Marked(text, "right") if token == one.word else text]
    return []


def _some(steps: Sequence[int]) -> list[int]:
    """Returns the first step, the last, and as many between, evenly, as a table has room for."""
    last, most = len(steps) - 1, _COLUMNS - 1
    places = range(len(steps)) if last <= most else (i * last // most for i in range(_COLUMNS))
    return [steps[place] for place in places]


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


def _attention(evals: Sequence[Record]) -> dict[str, Line]:
    """Returns layer -> steps and attention on neighbouring tokens, if evaluations measured it."""
    from bert_jax.metrics.neighbor_attention import by_layer

    lines: dict[str, Line] = {}
    for record in evals:
        for layer, share in by_layer(record).items():
            steps, shares = lines.setdefault(f"layer {layer}", ([], []))
            steps.append(record["step"])
            shares.append(share)
    return lines


def _add_sources(page: Page, record: Record, name: str) -> None:
    """Adds the accuracy of a pair objective per source, if there are several."""
    last = "baseline_accuracy"
    sources = sorted(filter(None, (_source(key, name, last) for key in record)))
    if len(sources) > 1:
        page.table(
            ("source", f"{name.upper()} accuracy", "majority label"),
            [
                (s, *(f"{record[f'{name}/{s}/{key}']:.1%}" for key in ("accuracy", last)))
                for s in sources
            ],
        )


def _drawn(lines: Mapping[str, Line]) -> dict[str, Line]:
    """Returns the lines that have a point."""
    return {name: line for name, line in lines.items() if line[0]}


def _line(records: Iterable[Record], key: str) -> Line:
    """Steps and values of the records that have the key, of many the means of neighbours, in which
    those that are not finite do not count; NaN where all are not."""
    logged = [r for r in records if key in r]
    together = max(1, math.ceil(len(logged) / _POINTS))
    groups = [logged[i : i + together] for i in range(0, len(logged), together)]
    steps = [group[-1]["step"] for group in groups]
    finite = ([r[key] for r in group if metrics.is_finite(r[key])] for group in groups)
    return steps, [sum(values) / len(values) if values else math.nan for values in finite]
