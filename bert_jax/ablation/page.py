"""The page of an ablation's report: one self-contained HTML file."""

# Over 300 lines: the sections of one page, in its order, each with what only it needs.

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.ablation import plan, record, sentences, spending
from bert_jax.ablation.measured import judged, own_objectives
from bert_jax.ablation.results import Results
from bert_jax.ablation.spending import Spending
from bert_jax.ablation.statistics import Difference
from bert_jax.ablation.tasks import is_task, settings_of
from bert_jax.config.ablation import AblationConfig
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.metrics import run_records
from bert_jax.objectives.known_objectives import OBJECTIVES, chosen
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.pretraining_model import parameter_count
from bert_jax.reporting import plots
from bert_jax.reporting.html import Page
from bert_jax.runtime.program import program
from bert_jax.training.eval_setting import OWN
from bert_jax.workdir import description

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # header and rows


def title(results: Results) -> str:
    """Returns the title of the report."""
    names = [variant.name for variant in results.ablation.variants]
    return f"Ablation: {names[0]} against {', '.join(names[1:])}"


def page_of(
    results: Results,
    rows: Sequence[Mapping[str, Any]],
    conclusions: Sequence[str],
    runs: Mapping[str, Spending],
    plans: Mapping[str, str],
) -> Page:
    """Returns the page: what was shown first, what identifies the runs last.

    Args:
        rows: those of `differences.csv`.
        conclusions: the verdicts, and what limits them.
        runs: what each measured run spent.
        plans: the digest of each run's training examples.
    """
    page = Page(title(results))
    page.heading("What was shown, and what was not")
    for line in conclusions:
        page.text(line)
    figures = _bars(results)
    if primary := figures.pop(results.ablation.values.primary, None):
        page.figure(*primary)
    page.facts(_facts(results))
    _add_differences(page, rows, list(figures.values()))
    _add_levels(page, results)
    _add_curves(page, results)
    _add_sources(page, rows)
    _add_spent(page, results, runs)
    _add_settings(page, results)
    for heading, table in results.ablation.values.published:
        page.heading(f"Published: {heading}")
        page.table(table[0], table[1:])
    _add_runs(page, results, runs, plans)
    return page


def _facts(results: Results) -> dict[str, str]:
    """Returns what was compared."""
    values = results.ablation.values
    return {
        "runs": sentences.progress(results),
        "seeds": ", ".join(map(str, results.ablation.seeds)),
        "base": values.base,
        "reference": results.ablation.reference,
        "equal": values.equal.replace("_", " "),
        "primary measure": _named(values.primary),
        **{measure: _settings(values, measure) for measure in results.ablation.tasks},
    }


def _identity(results: Results, runs: Mapping[str, Spending]) -> dict[str, str]:
    """Returns what identifies the text, and what made the runs."""
    store = results.record["store"]
    return {
        "store": results.ablation.values.store,
        "training text": store["train"],
        "held-out text": store["held_out"],
        "tokenizer": store["tokenizer"],
        "software": ", ".join(f"{k} {v}" for k, v in spending.software(runs.values()).items()),
    }


def _settings(values: AblationConfig, measure: str) -> str:
    """Returns how runs are fine-tuned for a task: changes of the config `glue`."""
    return ", ".join(f"{key}={value}" for key, value in settings_of(values, measure).items())


def _named(measure: str) -> str:
    what = "held-out examples" if is_task(measure) else "masked tokens"
    return f"{measure}, {what}, nats"


def _bars(results: Results) -> dict[str, tuple[str, str]]:
    """Returns a figure with its caption for each measure that is compared."""
    by_measure: dict[str, dict[str, Difference]] = {}
    names = {variant.name for variant in results.ablation.variants}
    for measure, what, source, variant, found in results.differences:
        if what == "loss" and not source and variant in names:
            by_measure.setdefault(measure, {})[variant] = found
    figures = {}
    for measure, found_by in by_measure.items():
        bars = {
            name: (found.mean, *found.interval)
            for name, found in found_by.items()
            if all(map(math.isfinite, found.interval))
        }
        if bars:
            caption = f"{measure}: loss minus that of the reference; below zero is better"
            svg = plots.intervals(bars, xlabel="nats, variant minus reference")
            figures[measure] = svg, caption
    return figures


def _add_differences(
    page: Page, rows: Sequence[Mapping[str, Any]], figures: Sequence[tuple[str, str]]
) -> None:
    judged, others = differences(rows)
    page.heading("Differences to the reference")
    page.text(
        "Variant minus reference, everywhere; below zero is better. The interval is of 95 %: the "
        "wider one on each side of several methods (docs/ablations.md). A difference of the "
        "primary measure is shown if its interval excludes zero and p survives Holm's correction; "
        "not attributable, if updates or tokens differ by more than 5 %, too."
    )
    page.table(*judged)
    if others[1]:
        page.text(
            "All other measures are exploratory; of those with ↓ below zero is better, with ↑ "
            "above zero."
        )
        page.table(*others)
    if figures:
        page.figures(figures)


def _add_levels(page: Page, results: Results) -> None:
    """Adds the losses of each measure beside the unigram and bigram, and the own objectives."""
    page.heading("Losses on held-out text")
    some = next(iter(results.measured.values()))
    rows = []
    for measure in results.ablation.measures:
        form = results.ablation.form(measure)
        objective, _ = judged(some.forms[form])
        trivial = some.metrics[form].get(f"{objective}/baseline_loss", "")
        bigram = "" if is_task(measure) else some.bigram_loss
        for variant in results.ablation.variants:
            loss = results.mean(variant.name, form, f"{objective}/loss")
            if loss is not None:
                rows.append((measure, variant.name, loss, trivial, bigram))
    header = ("measure", "variant", "loss (nats)", "unigram, or a constant", "bigram, all tokens")
    page.table(header, rows)
    page.text("Objectives that a variant was trained with, in the form it was trained in:")
    own = []
    for variant in results.ablation.variants:
        found = list(results.of(variant.name).values())
        for name in own_objectives(found[0]) if found else ():
            keys = [f"{name}/{key}" for key in ("loss", "baseline_loss", "accuracy")]
            values = (results.mean(variant.name, OWN, key) for key in keys)
            shown = ("" if value is None else value for value in values)
            own.append((variant.name, OBJECTIVES[name].title, *shown))
    page.table(("variant", "objective", "loss (nats)", "trivial loss", "accuracy"), own)


def _add_curves(page: Page, results: Results) -> None:
    """Adds the held-out losses while training, each in its own form, over real tokens."""
    lines = {}
    for variant in results.ablation.variants:
        spent = results.planned[variant.name]
        per_step = spent.real_tokens / spent.steps
        by_step: dict[int, list[float]] = {}
        for each in results.of(variant.name).values():
            path = results.workdir.run(each.run).metrics
            for each_eval in run_records.read_records(path, "eval"):
                loss = each_eval.get(f"{MASKED_LM.name}/loss")
                if run_records.is_finite(loss):
                    by_step.setdefault(each_eval["step"], []).append(loss)
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
        (row["variant"], row["source"], row["measure"], sentences.signed(row["difference"]),
         _interval(row))
        for row in rows
        if row["source"] and row["what"] == "loss"
    ]  # fmt: skip
    if shown:
        page.heading("By source")
        page.table(("variant", "source", "measure", "difference", "95 % interval"), shown)


def _add_spent(page: Page, results: Results, runs: Mapping[str, Spending]) -> None:
    page.heading("What each run spends")
    sizes = {
        variant.name: parameter_count(variant.config.model, chosen(variant.config.data))
        for variant in results.ablation.variants
    }
    rows = []
    for name, each in results.spent.items():
        found = [runs[own.run.name] for own in results.of(name).values()]
        speeds = [own.tokens_per_second for own in found if own.tokens_per_second]
        peaks = [peak for own in found for peak in own.peak_bytes.values()]
        is_known = not results.unrecorded(name)
        minutes = sum(own.wall_seconds for own in found) / len(found) / 60 if found else 0.0
        rows.append(
            (
                name,
                f"{each.steps:,.0f}" if is_known else "not known",
                f"{each.real_tokens:,.0f}" if is_known else "not known",
                f"{each.positions:,.0f}",
                f"{each.flops:.3g}",
                f"{sizes[name]:,}",
                f"{minutes:.1f}" if minutes else "",
                f"{sum(speeds) / len(speeds):,.0f}" if speeds else "",
                f"{max(peaks) / 2**20:,.0f}" if peaks else "",
                f"{spending.evaluation_share(found):.1%}" if found else "",
            )
        )
    header = ("variant", "updates", "real tokens", "positions", "FLOPs", "parameters",
              "minutes", "tokens/s at the end", "peak MiB", "evaluation")  # fmt: skip
    page.table(header, rows)
    page.text(
        "Updates and real tokens are those that the runs recorded, on average; positions (with "
        "padding), FLOPs and parameters follow from the configuration. Minutes: of training, "
        "measured. Peak: the most memory of a training process, or of its device if that counts "
        "and is more. Evaluation: the share of the time in which a run was measured after "
        "training, with its fine-tuning for tasks."
    )


def _add_runs(
    page: Page, results: Results, runs: Mapping[str, Spending], plans: Mapping[str, str]
) -> None:
    """Adds the commands, and the runs with the digests that identify them."""
    page.heading("Commands")
    for line in record.commands(results.workdir):
        page.code(line)
    page.code(f"{program()} ablate report --workdir={shlex.quote(str(results.workdir))}")
    page.text("Each run alone, with the flags of the first command behind it:")
    page.code(plan.commands(results.ablation, results.runs, results.workdir))
    page.heading("Runs")
    page.table(
        ("run", "state", "step", "configuration", "training examples", "commit"),
        [
            (
                run.name,
                results.states[run.name].state,
                results.states[run.name].step,
                description.digest(run.config),
                plans[run.name],
                runs[run.name].software.get("commit", "") if run.name in runs else "",
            )
            for run in results.runs
        ],
    )
    page.text("Configuration, training examples: digests of the settings, and of the plans.")
    page.facts(_identity(results, runs))


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


def differences(rows: Sequence[Mapping[str, Any]]) -> tuple[Table, Table]:
    """Returns the table of the primary measure, with the verdicts, and that of all other measures,
    in all text."""
    judged: list[tuple[str, ...]] = []
    others: list[tuple[str, ...]] = []
    for row in rows:
        values = sentences.signed(row["difference"]), _interval(row)
        if row["source"]:
            continue
        if row["verdict"] != "exploratory":
            judged.append((row["variant"], row["verdict"], *values))
            continue
        better = "↓" if row["what"] == "loss" else "↑"
        others.append((row["variant"], f"{row['measure']} {row['what']} {better}", *values))
    end = "difference", "95 % interval"
    return (("variant", "verdict", *end), judged), (("variant", "measure", *end), others)


def _interval(row: Mapping[str, Any]) -> str:
    return f"{sentences.signed(row['low'])} to {sentences.signed(row['high'])}"
