"""`bert-jax status`: shows the state of runs, once or again and again."""

import os
import sys
from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, UsageError, need
from bert_jax.commands.kinds import page
from bert_jax.commands.paths import define_input, define_output
from bert_jax.errors import UserError


def _define_status(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(
        values, "workdir", "folder of a run; may be repeated, a run for each", repeated=True
    )
    flags.DEFINE_bool(
        "json", False, "print one JSON object, of several runs a list", flag_values=values
    )
    watched = "show it again and again, until no run is running or Ctrl-C"
    flags.DEFINE_bool("watch", False, watched, flag_values=values)
    flags.DEFINE_integer(
        "every", 10, "seconds from one showing of --watch to the next", 1, flag_values=values
    )
    define_output(values, "html", "HTML page to write, with the plots of all runs", page)


def _run_status(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    folders = values.workdir
    _check_different(folders)
    if values["every"].present and not values.watch:
        raise UsageError("--every has no effect without --watch")
    from bert_jax.reporting import status, status_text, watch
    from bert_jax.runtime import console
    from bert_jax.runtime.log import plain

    def show(again: bool) -> bool:
        """Prints the runs and writes the page; returns whether to watch them further."""
        runs, unread = watch.read_runs(folders, again=again)
        further = values.watch and watch.goes_on(runs, unread)
        if values.json:
            print(status.as_json(*runs, unread=unread))
        else:
            shown, table = [*map(status_text.render, runs)], [*map(str, unread.values())]
            if len(folders) > 1 and runs:
                table.insert(0, console.table(*status_text.runs_table(runs)))
            # A terminal that is watched shows the end of what is printed.
            place = len(shown) if values.watch and sys.stdout.isatty() else 0
            shown[place:place] = table
            print("\n\n".join(map(plain, shown)))
        if values.html:
            from bert_jax.reporting.status_page import write_page

            refresh = values.every if further else 0
            write_page(runs, values.html, unread=unread, refresh=refresh)
        if unread and not further:
            raise next(iter(unread.values()))
        return further

    if values.watch:
        watch.again_and_again(show, values.every, only_prints=not values.html)
    else:
        show(False)


def _check_different(folders: Sequence[str]) -> None:
    """Raises UserError if two names are of one folder, whose curves would cover each other."""
    from bert_jax.storage.remote import is_remote

    seen = dict[str, str]()
    for folder in folders:
        place = folder.rstrip("/") if is_remote(folder) else os.path.realpath(folder)
        if other := seen.get(place):
            raise UserError(f"--workdir={folder}: the same as --workdir={other}; give it once")
        seen[place] = folder


COMMANDS = {
    "status": Command(
        "show the state of runs",
        "bert-jax status --workdir=run",
        _define_status,
        _run_status,
    ),
}
