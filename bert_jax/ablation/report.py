"""`bert-jax ablate report`: a page, and the same as CSV, JSON and Markdown.

A/report.html       verdicts, differences, curves, sources, configs
A/differences.csv   every difference with its intervals; the same for the same results
A/report.json       everything, and what was measured of time and memory
A/report.md         the verdicts and the table of differences
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from etils import epath

from bert_jax.ablation import plan, sentences, state
from bert_jax.ablation.results import Results, own_objectives
from bert_jax.ablation.spec import Spent, folder
from bert_jax.ablation.statistics import Difference
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline.storage.remote import open_path, write_named
from bert_jax.metrics import goodput, records
from bert_jax.metrics.records import strict
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.registry import OBJECTIVES
from bert_jax.reporting import plots
from bert_jax.reporting.html import Page
from bert_jax.runtime.console import console
from bert_jax.runtime.program import program
from bert_jax.runtime.versions import versions
from bert_jax.training.held_out_form import OWN
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

_HEADER: Final = (
    "measure", "what", "source", "variant", "difference", "low", "high", "bootstrap_low",
    "bootstrap_high", "t_low", "t_high", "p", "holm_p", "verdict", "seeds", "documents",
)  # fmt: skip


def write(results: Results, spent: Mapping[str, Spent]) -> None:
    """Writes all files into the workdir of the ablation, and prints the verdicts."""
    root = open_path(results.workdir)
    rows = list(rows_of(results))
    _write_csv(root / "differences.csv", rows)
    write_named(root / "report.json", _json(results, spent, rows).encode())
    write_named(root / "report.md", _markdown(results, rows).encode())
    page_of(results, spent, rows).save(root / "report.html")
    for line in (sentences.progress(results), *_told(results)):
        console.print(line, markup=False)
    console.print(f"wrote {root / 'report.html'}, differences.csv, report.json, report.md")


def _told(results: Results) -> list[str]:
    return [*sentences.verdicts(results), *sentences.excluded(results)]


def rows_of(results: Results) -> Iterator[dict[str, Any]]:
    """Yields a row of `differences.csv` for every difference."""
    verdicts, primary = results.verdicts(), results.ablation.values.primary
    for measure, what, source, variant, found in results.differences:
        judged = measure == primary and what == "loss" and not source
        verdict = verdicts[variant] if judged else None
        text = "exploratory"
        if verdict:
            names = {True: "shown", False: "not distinguishable", None: "no verdict"}
            text = names[verdict.shown]
        values = (
            measure, "loss" if what == "loss" else "accuracy", source, variant, found.mean,
            *found.interval, *found.bootstrap, *found.student, found.p,
            verdict.adjusted_p if verdict else math.nan, text, found.seeds, found.documents,
        )  # fmt: skip
        yield dict(zip(_HEADER, values, strict=True))


def _write_csv(path: epath.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, _HEADER, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shown = {k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()}
        writer.writerow({k: "" if v == "nan" else v for k, v in shown.items()})
    write_named(path, out.getvalue().encode())


def _json(results: Results, spent: Mapping[str, Spent], rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns everything that the page shows, and what was measured of each run."""
    values = {
        "ablation": state.describe(results.ablation),
        "versions": versions(),
        "verdicts": sentences.verdicts(results),
        "excluded": results.excluded,
        "differences": rows,
        "spent": {name: vars(each) for name, each in spent.items()},
        "runs": {
            name: {
                "metrics": each.metrics,
                "bigram_loss": each.bigram_loss,
                "measured": _measured(results, each.run),
                "configuration": description.digest(each.run.config),
            }
            for name, each in results.measured.items()
        },
    }
    return json.dumps(strict(values), indent=2, allow_nan=False) + "\n"


def _measured(results: Results, run: Any) -> dict[str, Any]:
    """Returns the time of a run by cause, and its speed."""
    workdir = Workdir.open(folder(results.workdir, run))
    written = list(records.records(workdir.metrics))
    spent = goodput.account(written)
    evaluated = results.measured[run.name].seconds
    train = [record for record in written if record["kind"] == "train"]
    speed = train[-1]["tokens_per_second"] if train else None
    return {
        "wall_seconds": spent.wall,
        "seconds": spent.seconds,
        "evaluation_seconds": evaluated,
        "tokens_per_second": speed,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    header = ("measure", "variant", "difference", "between", "and", "verdict")
    shown = [
        (
            f"{row['measure']} {row['what']}",
            row["variant"],
            *(sentences.signed(row[key]) for key in ("difference", "low", "high")),
            row["verdict"],
        )
        for row in rows
        if not row["source"]
    ]
    return header, shown


def _markdown(results: Results, rows: Sequence[Mapping[str, Any]]) -> str:
    header, shown = _table(rows)
    lines = [
        f"# {_title(results)}",
        "",
        sentences.progress(results) + ".",
        "",
        *(f"- {line}" for line in _told(results)),
        "",
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(row)} |" for row in shown),
    ]
    return "\n".join(lines) + "\n"


def _title(results: Results) -> str:
    names = [variant.name for variant in results.ablation.variants]
    return f"Ablation: {names[0]} against {', '.join(names[1:])}"


def page_of(
    results: Results, spent: Mapping[str, Spent], rows: Sequence[Mapping[str, Any]]
) -> Page:
    page = Page(_title(results))
    values = results.ablation.values
    page.facts(
        {
            "runs": sentences.progress(results),
            "base": values.base,
            "reference": results.ablation.reference,
            "equal": values.equal.replace("_", " "),
            "primary measure": f"{values.primary}, masked tokens, nats",
            "store": values.store,
            "held-out text": next(iter(results.measured.values())).held_out,
            "software": ", ".join(f"{name} {version}" for name, version in versions().items()),
        }
    )
    page.heading("What was shown, and what was not")
    for line in _told(results):
        page.text(line)
    page.heading("Differences to the reference")
    page.text(
        "Between: the wider one of two 95 % intervals on each side, the multi-bootstrap over seeds "
        "and whole documents and Student's t over seeds. A difference is shown if both exclude "
        "zero and p survives Holm's correction; other measures are exploratory. Losses in nats: "
        "below zero is better. Accuracies: above zero is better."
    )
    page.table(*_table(rows))
    page.figures(_bars(results))
    _add_levels(page, results)
    _add_curves(page, results, spent)
    _add_sources(page, rows)
    _add_spent(page, results, spent)
    _add_settings(page, results)
    for title, table in values.published:
        page.heading(f"Published: {title}")
        page.table(table[0], table[1:])
    page.heading("Commands")
    page.text(f"{program()} ablate report --workdir={results.workdir}")
    for line in plan.commands(results.ablation, results.runs, results.workdir).splitlines():
        page.sentences([line])
    return page


def _bars(results: Results) -> Iterator[tuple[str, str]]:
    by_measure: dict[str, dict[str, Difference]] = {}
    for measure, what, source, variant, found in results.differences:
        if what == "loss" and not source:
            by_measure.setdefault(measure, {})[variant] = found
    for measure, found_by in by_measure.items():
        bars = {
            name: (found.mean, *found.interval)
            for name, found in found_by.items()
            if all(map(math.isfinite, found.interval))
        }
        if bars:
            caption = f"{measure}: loss minus that of the reference"
            yield plots.intervals(bars, xlabel="nats"), caption


def _add_levels(page: Page, results: Results) -> None:
    """Adds the losses of each measure beside the unigram and bigram, and the own objectives."""
    page.heading("Losses on held-out text")
    some = next(iter(results.measured.values()))
    rows = []
    for measure in results.ablation.measures:
        form = results.ablation.form(measure)
        unigram = some.metrics[form][f"{MASKED_LM.name}/baseline_loss"]
        for variant in results.ablation.variants:
            loss = results.mean(variant.name, form, f"{MASKED_LM.name}/loss")
            if loss is not None:
                rows.append((measure, variant.name, loss, unigram, some.bigram_loss))
    page.table(("measure", "variant", "loss (nats)", "unigram", "bigram, all tokens"), rows)
    page.text("Objectives that a variant was trained with, in the form it was trained in:")
    own = []
    for variant in results.ablation.variants:
        found = list(results.of(variant.name).values())
        for name in own_objectives(found[0]) if found else ():
            keys = [f"{name}/{key}" for key in ("loss", "baseline_loss", "accuracy")]
            values = (results.mean(variant.name, OWN, key) for key in keys)
            own.append((variant.name, OBJECTIVES[name].title, *values))
    page.table(("variant", "objective", "loss (nats)", "trivial loss", "accuracy"), own)


def _add_curves(page: Page, results: Results, spent: Mapping[str, Spent]) -> None:
    """Adds the held-out losses while training, each in its own form, over real tokens."""
    lines = {}
    for variant in results.ablation.variants:
        per_step = spent[variant.name].real_tokens / spent[variant.name].steps
        by_step: dict[int, list[float]] = {}
        for each in results.of(variant.name).values():
            path = Workdir.open(folder(results.workdir, each.run)).metrics
            for record in records.read(path, "eval"):
                by_step.setdefault(record["step"], []).append(record[f"{MASKED_LM.name}/loss"])
        if by_step:
            steps = sorted(by_step)
            lines[variant.name] = ([s * per_step for s in steps], [by_step[s] for s in steps])
    if not lines:
        return
    page.heading("While training")
    caption = "Held-out loss in the form that each variant is trained in; band: all seeds"
    figure = plots.bands(lines, xlabel="real tokens", ylabel="masked tokens, loss (nats)")
    page.figure(figure, caption)


def _add_sources(page: Page, rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [
        (row["measure"], row["source"], row["variant"],
         *(sentences.signed(row[key]) for key in ("difference", "low", "high")))
        for row in rows
        if row["source"] and row["what"] == "loss"
    ]  # fmt: skip
    if shown:
        page.heading("By source")
        page.table(("measure", "source", "variant", "difference", "between", "and"), shown)


def _add_spent(page: Page, results: Results, spent: Mapping[str, Spent]) -> None:
    page.heading("What each run spends")
    rows = []
    for name, each in spent.items():
        found = [_measured(results, own.run) for own in results.of(name).values()]
        speeds = [own["tokens_per_second"] for own in found if own["tokens_per_second"]]
        speed = f"{sum(speeds) / len(speeds):,.0f}" if speeds else ""
        evaluation = sum(own["evaluation_seconds"] for own in found)
        total = evaluation + sum(own["wall_seconds"] for own in found)
        share = f"{evaluation / total:.1%}" if total else ""
        tokens, flops = f"{each.real_tokens:,.0f}", f"{each.flops:.3g}"
        rows.append((name, each.steps, tokens, flops, speed, share))
    header = ("variant", "steps", "real tokens", "FLOPs", "tokens/s at the end", "evaluation")
    page.table(header, rows)
    page.text("Evaluation: the share of the time in which the forms were measured after training.")


def _add_settings(page: Page, results: Results) -> None:
    """Adds the settings in which the variants differ."""
    all_values = {v.name: flatten(to_dict(v.config)) for v in results.ablation.variants}
    keys = dict.fromkeys(key for values in all_values.values() for key in values)
    rows = [
        (key, *(str(values.get(key, "")) for values in all_values.values()))
        for key in keys
        if len({repr(values.get(key)) for values in all_values.values()}) > 1
    ]
    page.heading("What differs between the variants")
    page.table(("setting", *all_values), rows)
