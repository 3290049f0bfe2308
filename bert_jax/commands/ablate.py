"""`bert-jax ablate run|report`: runs that differ in settings, and what their differences show."""

import os
import shlex
from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, given_flags, need
from bert_jax.commands.kinds import ablation_folder
from bert_jax.commands.paths import define_input, define_output
from bert_jax.errors import UsageError, UserError, count


def _define_run(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.config_files import define_config

    define_config(values, words, ablation=True)
    define_output(values, "workdir", "folder of the ablation", ablation_folder)
    at_once = "number of runs at once, each with its share of the cores"
    flags.DEFINE_integer("at_once", 1, at_once, 1, flag_values=values)
    shard = "part of the runs, such as 3/16, for one of 16 jobs"
    flags.DEFINE_string("shard", None, shard, flag_values=values)
    plan = "print the runs and what they spend; nothing runs"
    flags.DEFINE_bool("plan", False, plan, flag_values=values)
    commands = "with --plan: print the command of each run instead"
    flags.DEFINE_bool("commands", False, commands, flag_values=values)
    define_cpu_devices(values)


def _run_run(values: flags.FlagValues, words: Sequence[str]) -> int:
    need(values, "config", "workdir")
    if values.commands and not values.plan:
        raise UsageError("--commands goes with --plan; give both, or neither")
    from bert_jax.ablation import budget, plan, record, results, run, spec, tasks
    from bert_jax.ablation.layout import AblationDir
    from bert_jax.ablation.stores import open_stores
    from bert_jax.config.serialization import plain
    from bert_jax.extensions.registry import added

    ablation = spec.parse_ablation(plain(values.config))
    paths = [*map(os.path.abspath, values.module), *(each.path for each in added())]
    modules = [f"--module={path}" for path in dict.fromkeys(paths) if path]
    workdir = AblationDir.open(values.workdir)
    spec.shard_of([], values.shard)
    if workdir.record.exists() or not values.plan:
        tasks.check_local(ablation.measures, str(workdir))
        record.claim(workdir, ablation)
    ablation, spent = budget.equalize_budgets(ablation, open_stores(ablation.variants))
    runs = spec.shard_of(spec.runs(ablation), values.shard)
    if values.plan and values.commands:
        print(plan.commands(ablation, runs, workdir, modules))
        return 0
    if values.plan:
        exists = workdir.record.exists()
        known = record.read_record(workdir) if exists else record.describe(ablation)
        print(plan.text(runs, results.read_results(ablation, workdir, runs, spent, known)))
        return 0
    record.note_command(workdir, typed(values))
    options = [*modules, *([f"--cpu_devices={values.cpu_devices}"] if values.cpu_devices else [])]
    runner = run.Runner(ablation, workdir, runs, at_once=values.at_once, options=options)
    code = runner.run()
    print(runner.shares())
    if not code:
        print(f"{count(len(runs), 'run')} done; next: bert-jax ablate report --workdir={workdir}")
    return code


def typed(values: flags.FlagValues) -> str:
    """Returns the line of `ablate run` with the flags that were given, a shipped file by its
    name."""
    from bert_jax.config.config_files import as_typed
    from bert_jax.config.shipped import shipped_ablations
    from bert_jax.runtime.program import program

    names = {f"--config={path}": f"--config={name}" for name, path in shipped_ablations().items()}
    given = [names.get(word, word) for word in map(as_typed, given_flags(values))]
    return f"{program()} {shlex.join(['ablate', 'run', *given])}"


def _run_report(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    from bert_jax.ablation import budget, record, report_files, results, sentences, spec
    from bert_jax.ablation.layout import AblationDir
    from bert_jax.ablation.stores import open_stores
    from bert_jax.config.serialization import to_dict

    workdir = AblationDir.open(values.workdir)
    recorded = record.read_record(workdir)
    base = record.base_of(workdir, recorded)
    ablation = spec.parse_ablation(to_dict(record.values_of(recorded)), base)
    opened = open_stores(ablation.variants)
    ablation, spent = budget.equalize_budgets(ablation, opened)
    found = results.read_results(ablation, workdir, spec.runs(ablation), spent, recorded)
    if not found.measured and found.unplanned:
        raise UserError(f"{workdir}: no run can be compared. {' '.join(sentences.excluded(found))}")
    if not found.measured:
        raise UserError(
            f"{workdir}: no run has ended and been measured yet; `bert-jax ablate run` makes them"
        )
    report_files.write(found, opened)


COMMANDS = {
    "ablate run": Command(
        "train and measure the variants of an ablation, or resume",
        "bert-jax ablate run --config=ablations/nsp --config.store=store --workdir=A --at_once=2",
        _define_run,
        _run_run,
        takes_ablation=True,
        is_run=True,
    ),
    "ablate report": Command(
        "compare the variants of an ablation: page, tables, data",
        "bert-jax ablate report --workdir=A",
        lambda values, words: define_input(values, "workdir", "folder of the ablation"),
        _run_report,
    ),
}
