"""`bert-jax status`: shows the state of a run."""

from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, need
from bert_jax.commands.kinds import page
from bert_jax.commands.paths import define_input, define_output


def _define_status(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(values, "workdir", "folder of a pretraining run")
    flags.DEFINE_bool("json", False, "print one JSON object", flag_values=values)
    define_output(values, "html", "HTML page to write, with plots", page)


def _run_status(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    from bert_jax.reporting import status, status_text
    from bert_jax.runtime.log import plain

    run = status.read_status(values.workdir)
    print(status.as_json(run) if values.json else plain(status_text.render(run)))
    if values.html:
        from bert_jax.reporting.status_page import write_page

        write_page(values.workdir, values.html)


COMMANDS = {
    "status": Command(
        "show the state of a run",
        "bert-jax status --workdir=run",
        _define_status,
        _run_status,
    ),
}
