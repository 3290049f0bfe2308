"""`bert-jax ablate report`: a page, and the same as CSV, JSON and Markdown.

A/report.html       verdicts, differences, curves, sources, configs
A/differences.csv   every difference with its intervals; the same for the same results
A/report.json       everything, and what was measured of time and memory
A/report.md         the verdicts and the table of differences
"""

import csv
import dataclasses
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from etils import epath

from bert_jax.ablation import record, sentences, spec, spending
from bert_jax.ablation.page import differences, page_of, title
from bert_jax.ablation.results import Results
from bert_jax.ablation.spending import Spending
from bert_jax.ablation.stores import Stores
from bert_jax.metrics.run_records import strict
from bert_jax.runtime.console import clock, console
from bert_jax.storage.remote import put
from bert_jax.workdir import description

_HEADER: Final = (
    "measure", "what", "source", "variant", "difference", "low", "high", "bootstrap_low",
    "bootstrap_high", "t_low", "t_high", "satterthwaite_low", "satterthwaite_high", "p", "holm_p",
    "verdict", "seeds", "documents", "effective_documents",
)  # fmt: skip


def write(results: Results, stores: Stores) -> None:
    """Writes all files into the workdir of the ablation, and prints the verdicts and what the
    report itself took."""
    begun = time.perf_counter()
    folder = results.workdir
    rows, conclusions = list(rows_of(results)), sentences.conclusions(results)
    _write_csv(folder.differences, rows)
    put(folder.report.with_suffix(".md"), _markdown(results, rows, conclusions).encode())
    runs, plans = spending.spending_of(results), spec.plan_digests(results.runs, stores)
    page_of(results, rows, conclusions, runs, plans).save(folder.report)
    values = _values(results, rows, conclusions, runs, plans)
    values["report_seconds"] = seconds = time.perf_counter() - begun
    text = json.dumps(strict(values), indent=2, allow_nan=False) + "\n"
    put(folder.report.with_suffix(".json"), text.encode())
    record.note_report(folder, results.seen)
    for line in (sentences.progress(results), *conclusions):
        console.print(line, markup=False)
    total = sum(each.total_seconds for each in runs.values())
    console.print(
        f"evaluation: {spending.evaluation_share(runs.values()):.1%} of the {clock(total)} of the "
        f"runs; statistics and page: {seconds:.1f} s, {seconds / total if total else 0:.2%}"
    )
    console.print(f"wrote {folder.report}, differences.csv, report.json, report.md")


def rows_of(results: Results) -> Iterator[dict[str, Any]]:
    """Yields a row of `differences.csv` for every difference."""
    verdicts, primary = results.verdicts, results.ablation.values.primary
    for measure, what, source, variant, found in results.differences:
        judged = measure == primary and what == "loss" and not source
        verdict = verdicts.get(variant) if judged else None
        text = "exploratory"
        if verdict:
            names = {True: "shown", False: "not distinguishable", None: "no verdict"}
            text = names[verdict.shown]
            if verdict.shown is not None and not results.contrast(variant).is_attributable:
                text += ", not attributable"
        values = (
            measure, "loss" if what == "loss" else "accuracy", source, variant, found.mean,
            *found.interval, *found.bootstrap, *found.student, *found.satterthwaite, found.p,
            verdict.adjusted_p if verdict else math.nan, text, found.seeds, found.documents,
            found.effective_documents,
        )  # fmt: skip
        yield dict(zip(_HEADER, values, strict=True))


def _write_csv(path: epath.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, _HEADER, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shown = {k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()}
        writer.writerow({k: "" if v == "nan" else v for k, v in shown.items()})
    put(path, out.getvalue().encode())


def _values(
    results: Results,
    rows: Sequence[Mapping[str, Any]],
    conclusions: Sequence[str],
    runs: Mapping[str, Spending],
    plans: Mapping[str, str],
) -> dict[str, Any]:
    """Returns everything that the page shows, and what was measured of each run."""
    return {
        "ablation": results.record,
        "commands": record.commands(results.workdir),
        "software": spending.software(runs.values()),
        "verdicts": sentences.verdicts(results),
        "told": conclusions,
        "excluded": results.excluded,
        "differences": rows,
        "planned": {name: vars(each) for name, each in results.planned.items()},
        "spent": {name: vars(each) for name, each in results.spent.items()},
        "runs": {
            name: {
                "metrics": each.metrics,
                "bigram_loss": each.bigram_loss,
                "measured": dataclasses.asdict(runs[name]),
                "configuration": description.digest(each.run.config),
                "plan": plans[name],
                "recorded": each.is_recorded,
            }
            for name, each in results.measured.items()
        },
    }


def _markdown(
    results: Results, rows: Sequence[Mapping[str, Any]], conclusions: Sequence[str]
) -> str:
    lines = [
        f"# {title(results)}",
        "",
        sentences.progress(results) + ".",
        "",
        *(f"- {line}" for line in conclusions),
    ]
    for header, shown in differences(rows):
        lines += ["", f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
        lines += [f"| {' | '.join(row)} |" for row in shown]
    return "\n".join(lines) + "\n"
