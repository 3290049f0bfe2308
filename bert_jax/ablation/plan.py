"""The plan of an ablation: steps, tokens, FLOPs, hours, detectable differences."""

import shlex
from collections.abc import Sequence

from bert_jax.ablation import spec, statistics
from bert_jax.ablation.budget import Budget, contrast
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.results import Results
from bert_jax.ablation.sentences import by_seeds, too_few_documents
from bert_jax.ablation.spec import Ablation, Run
from bert_jax.errors import count
from bert_jax.runtime.console import table
from bert_jax.runtime.program import program


def text(runs: Sequence[Run], results: Results) -> str:
    """Returns the plan of runs as text. results: of those that have ended; their time and spread
    are the estimates for the others."""
    ablation, spent = results.ablation, results.planned
    seeds = len({run.seed for run in runs})
    header = ["steps", "real tokens", "FLOPs", "against the reference", "hours", "runs", "variant"]
    rows = []
    for variant in ablation.variants:
        each, own = spent[variant.name], sum(run.variant == variant.name for run in runs)
        hours = results.hours(variant.name)
        rows.append(
            [
                f"{each.steps:,.0f}",
                f"{each.real_tokens:,.0f}",
                f"{each.flops:.3g}",
                _beside(each, spent[ablation.reference]),
                "-" if hours is None else f"{hours:.2f}",
                str(own),
                variant.name,
            ]
        )
    equal = ablation.values.equal.replace("_", " ")
    lines = [
        f"{count(len(runs), 'run')}: {count(len(ablation.variants), 'variant')}, "
        f"{count(seeds, 'seed')}, with equal {equal}; "
        "hours: of one run, measured on finished runs",
        table(header, rows),
        *_contrasts(results),
        "",
        *_detectable(results),
    ]
    return "\n".join(lines)


def _beside(each: Budget, reference: Budget) -> str:
    """Returns what differs from the reference: "steps +0.5%, tokens +0.1%, FLOPs +2%"."""
    ratios = {
        "steps": each.steps / reference.steps,
        "tokens": each.real_tokens / reference.real_tokens,
        "FLOPs": each.flops / reference.flops,
    }
    return ", ".join(f"{name} {ratio - 1:+.2%}" for name, ratio in ratios.items())


def _contrasts(results: Results) -> list[str]:
    """Returns a line for each variant whose verdict would name what else differs."""
    ablation, spent = results.ablation, results.planned
    lines = []
    for variant in ablation.variants[1:]:
        own, theirs = spent[variant.name], spent[ablation.reference]
        if said := contrast(own, theirs, ablation.values.consequences).text:
            lines.append(f"{variant.name}: a verdict will add: {said.lstrip(',; ')}")
    return lines


def _detectable(results: Results) -> list[str]:
    lines = [
        "smallest difference detected with 80 % power, in standard deviations of the paired "
        f"difference: {by_seeds(statistics.seeds_factor, 2)}"
    ]
    for name, found in results.primary.items():
        if found.judged:
            shown = by_seeds(found.detectable)
            lines.append(f"{name}, from the finished runs, in nats: {shown}")
        elif found.effective_documents < statistics.FEWEST_DOCUMENTS:
            lines.append(f"{name}: {too_few_documents(found)}")
    return lines


def commands(
    ablation: Ablation, runs: Sequence[Run], workdir: AblationDir, modules: Sequence[str] = ()
) -> str:
    """Returns the line of each run, to be typed or given to a launcher.

    modules: the flags --module of each.
    """
    words = ([*spec.words(ablation, run, workdir.run(run)), *modules] for run in runs)
    return "\n".join(f"{program()} {shlex.join(each)}" for each in words)
