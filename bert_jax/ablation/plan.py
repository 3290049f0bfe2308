"""What an ablation would run: steps, tokens, FLOPs, hours, detectable differences."""

import shlex
from collections.abc import Mapping, Sequence

from bert_jax.ablation import spec, statistics
from bert_jax.ablation.results import Results
from bert_jax.ablation.sentences import by_seeds
from bert_jax.ablation.spec import Ablation, Run, Spent
from bert_jax.runtime.console import table
from bert_jax.runtime.program import program


def text(
    ablation: Ablation, spent: Mapping[str, Spent], runs: Sequence[Run], results: Results
) -> str:
    """Returns the plan as text. results: of the runs that have ended; their time and spread are the
    estimates for the others."""
    seeds = len({run.seed for run in runs})
    header = ["steps", "real tokens", "FLOPs", "against the reference", "hours", "runs", "variant"]
    rows = []
    for variant in ablation.variants:
        each, count = spent[variant.name], sum(run.variant == variant.name for run in runs)
        hours = results.hours(variant.name)
        rows.append(
            [
                f"{each.steps:,}",
                f"{each.real_tokens:,.0f}",
                f"{each.flops:.3g}",
                _against(each, spent[ablation.reference]),
                "-" if hours is None else f"{hours:.2f}",
                str(count),
                variant.name,
            ]
        )
    equal = ablation.values.equal.replace("_", " ")
    lines = [
        f"{len(runs)} runs: {len(ablation.variants)} variants, {seeds} seeds; equal {equal}; hours "
        "of one run, from the runs that have ended",
        table(header, rows),
        "",
        *_detectable(results),
    ]
    return "\n".join(lines)


def _against(each: Spent, reference: Spent) -> str:
    """Returns what remains different after the steps were rounded: "tokens +0.1 %, FLOPs +2 %"."""
    tokens, flops = each.real_tokens / reference.real_tokens, each.flops / reference.flops
    return f"tokens {tokens - 1:+.2%}, FLOPs {flops - 1:+.2%}"


def _detectable(results: Results) -> list[str]:
    lines = [
        "difference shown with 80 % power, in standard deviations of the paired difference between "
        f"seeds: {by_seeds(statistics.seeds_factor, 2)}"
    ]
    for name, found in results.primary.items():
        if found.seeds >= statistics.FEWEST_SEEDS:
            shown = by_seeds(found.detectable)
            lines.append(f"{name}, from the runs that have ended, in nats: {shown}")
    return lines


def commands(ablation: Ablation, runs: Sequence[Run], workdir: str) -> str:
    """Returns the line of each run, to be typed or given to a launcher."""
    words = (spec.words(ablation, run, spec.folder(workdir, run)) for run in runs)
    return "\n".join(f"{program()} {shlex.join(each)}" for each in words)
