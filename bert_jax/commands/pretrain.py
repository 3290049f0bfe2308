"""`bert-jax demo`, `pretrain`, `evaluate` and `status`: runs."""

import os
import typing
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_jax.commands.command import Verb, check_page, need
from bert_jax.errors import UsageError


def _define_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", "demo_run", "folder for everything", flag_values=values)
    data = "your text, a file or folder (default: the documentation every Python carries)"
    flags.DEFINE_string("data", None, data, flag_values=values)
    steps = "training steps (default: a few minutes' worth)"
    flags.DEFINE_integer("steps", None, steps, 1, flag_values=values)


def _run_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.demo import demo

    demo(Path(values.workdir), data=values.data, steps=values.steps)


def _define_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.files import define_config

    define_config(values, words)
    flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
    _define_devices(values)
    of_first = "HOST:PORT of process 0, with the next two (default: found where a cluster says so)"
    flags.DEFINE_string("coordinator", None, of_first, flag_values=values)
    flags.DEFINE_integer("num_processes", None, "of the job", 1, flag_values=values)
    flags.DEFINE_integer("process_id", None, "of this process, from 0", 0, flag_values=values)
    strict = (
        "stop at a checkpoint that is damaged or of another run (default: it is moved away, an "
        "older one is used)"
    )
    flags.DEFINE_bool("strict_restore", False, strict, flag_values=values)
    adopt = "take checkpoints of another run that are in the workdir into this run, on purpose"
    flags.DEFINE_bool("adopt", False, adopt, flag_values=values)
    traced = "FIRST:END, steps to trace for TensorBoard and Perfetto"
    flags.DEFINE_string("profile", None, traced, flag_values=values)


def _define_devices(values: flags.FlagValues) -> None:
    devices = "on a CPU: act as so many devices"
    flags.DEFINE_integer("cpu_devices", None, devices, 1, flag_values=values)


def _run_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "config", "workdir")
    from bert_jax.config.files import read_config

    config = read_config(values)
    from bert_jax.distributed import job, peers
    from bert_jax.parallel import partition
    from bert_jax.runtime import compile_cache
    from bert_jax.runtime.versions import versions
    from bert_jax.training.loop import pretrain
    from bert_jax.training.profiling import Steps
    from bert_jax.workdir import description

    place = peers.find_place(
        values.coordinator,
        values.num_processes,
        values.process_id,
        timeout=config.deadlines.start,
    )
    partition.use_cpu_devices(values.cpu_devices, processes=place.num_processes)
    about = versions() | {
        "configuration": description.digest(config),
        "--cpu_devices": str(values.cpu_devices),
        **{name: os.environ.get(name, "") for name in ("XLA_FLAGS", "PJRT_NPROC")},
    }
    profile = Steps.parse(values.profile) if values.profile else None
    with job.started(config, place, about) as started:
        compile_cache.use()
        pretrain(
            config,
            values.workdir,
            job=started,
            strict_restore=values.strict_restore,
            adopt=values.adopt,
            profile=profile,
        )


def _define_evaluate(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.schema import DataConfig

    flags.DEFINE_string("workdir", None, "folder of a pretraining run", flag_values=values)
    flags.DEFINE_integer("step", None, "checkpoint (default: the newest)", 0, flag_values=values)
    flags.DEFINE_bool("all", False, "all checkpoints", flag_values=values)
    best = "the one with the lowest held-out loss in its last phase"
    flags.DEFINE_bool("best", False, best, flag_values=values)
    store = "another store made with the run's tokenizer (default: the run's)"
    flags.DEFINE_string("store", None, store, flag_values=values)
    batches = "at most so many batches of the run's size (default: all held-out text)"
    flags.DEFINE_integer("batches", 0, batches, 0, flag_values=values)
    hints = typing.get_type_hints(DataConfig)
    for name, what in (("pairing", "how examples are made"), ("masking", "how masks are drawn")):
        choices = list(typing.get_args(hints[name]))
        says = f"{what}: {', '.join(choices)} (default: the run's)"
        flags.DEFINE_enum(name, None, choices, says, flag_values=values)
    _define_devices(values)


def _run_evaluate(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    which = [name for name in ("step", "all", "best") if values[name].value not in (None, False)]
    if len(which) > 1:
        raise UsageError(f"--{which[0]} and --{which[1]} together: give one of them")
    from bert_jax.parallel.partition import use_cpu_devices
    from bert_jax.runtime import compile_cache
    from bert_jax.training.evaluate import evaluate_run

    if values.cpu_devices:
        use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    evaluate_run(
        values.workdir,
        "all" if values.all else "best" if values.best else values.step,
        store=values.store,
        batches=values.batches,
        pairing=values.pairing,
        masking=values.masking,
    )


def _define_status(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", None, "folder of a pretraining run", flag_values=values)
    flags.DEFINE_bool("json", False, "as one JSON object", flag_values=values)
    page = "also write a page with the curves to this file"
    flags.DEFINE_string("html", None, page, flag_values=values)


def _run_status(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    check_page(values.html)
    from bert_jax.reporting import status, status_text
    from bert_jax.runtime.console import plain

    found = status.read(values.workdir)
    print(status.as_json(found) if values.json else plain(status_text.render(found)))
    if values.html:
        status.write_page(values.workdir, values.html)


VERBS = {
    "demo": Verb(
        "the whole way on this machine: text, tokenizer, store, pretraining, export, report",
        "bert-jax demo --data=/path/to/text",
        _define_demo,
        _run_demo,
        is_run=True,
    ),
    "pretrain": Verb(
        "train a model; run again, it goes on from its newest checkpoint",
        "bert-jax pretrain --config=wiki_books_small --config.data.store=store --workdir=run",
        _define_pretrain,
        _run_pretrain,
        is_run=True,
    ),
    "evaluate": Verb(
        "measure checkpoints of a run on its held-out text",
        "bert-jax evaluate --workdir=run --all",
        _define_evaluate,
        _run_evaluate,
    ),
    "status": Verb(
        "say where a run stands",
        "bert-jax status --workdir=run",
        _define_status,
        _run_status,
    ),
}
