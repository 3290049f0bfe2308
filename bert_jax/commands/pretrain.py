"""`bert-jax pretrain`: trains a model."""

import time
from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, need
from bert_jax.commands.kinds import run
from bert_jax.commands.run_flags import (
    define_run,
    find_deadline,
    find_processes,
    job_of,
    run_options,
    stopping_at,
)


def _define_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.config_files import define_config

    define_config(values, words)
    define_run(values, run)
    budget = "time for a new run, such as 60m (s, m, h, d); decides how many steps it has"
    flags.DEFINE_string("time_budget", None, budget, flag_values=values)


def _run_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "config", "workdir")
    start = time.monotonic()
    from bert_jax.training.resolve import read_config

    config = read_config(values, values.workdir)
    from bert_jax.training.loop import pretrain

    topology, options = find_processes(values, config), run_options(values)
    deadline = find_deadline(values, config, start)
    with (
        job_of(values, config, topology, time_budget=values.time_budget) as started,
        stopping_at(deadline, values, started) as job,
    ):
        pretrain(config, values.workdir, job=job, options=options)


COMMANDS = {
    "pretrain": Command(
        "train a model, or resume from its newest checkpoint",
        "bert-jax pretrain --config=wiki_books_small --config.data.store=store --workdir=run",
        _define_pretrain,
        _run_pretrain,
        is_run=True,
    ),
}
