"""`bert-jax COMMAND`: runs a command; errors become one line and an exit code."""

import contextlib
import itertools
import logging
import signal
import sys
from collections.abc import Iterable, Sequence

from absl import flags

from bert_jax.commands import (
    ablate,
    compile,
    completion,
    convert,
    data,
    demo,
    doctor,
    embed,
    evaluate,
    fill,
    finetune,
    launch,
    look,
    pretrain,
    search,
    status,
)
from bert_jax.commands.command import Command, define, help_of, parse
from bert_jax.commands.paths import check_inputs, check_outputs
from bert_jax.errors import (
    StoppedError,
    UsageError,
    UserError,
    code_of,
    line_of,
    nearest,
    nearest_name,
)
from bert_jax.exit_codes import DONE, USAGE
from bert_jax.runtime import versions
from bert_jax.runtime.log import NOTICE, configure_logging, logger
from bert_jax.runtime.streams import TolerantStream, tolerant_streams

_HELP = ("--help", "-h", "help")
# In the order of `bert-jax --help`.
_MODULES = (
    demo, data, pretrain, evaluate, status, convert, fill, finetune, embed, search, look, compile,
    launch, ablate, doctor,
)  # fmt: skip
COMMANDS: dict[str, Command] = {
    name: command for module in _MODULES for name, command in module.COMMANDS.items()
}
COMMANDS["completion"] = completion.command(COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    configure_logging()
    with tolerant_streams():
        return _guarded(list(sys.argv[1:] if argv is None else argv))


def _guarded(words: list[str]) -> int:
    """Runs a command; prints an error as one line and returns its exit code."""
    try:
        return _run(words)
    except UsageError as error:
        logger.log(NOTICE, f"usage: {error}; see `{_help_command(words)}`")
        return USAGE
    except KeyboardInterrupt:
        logger.log(NOTICE, "interrupted; run the same command again to resume")
        return 128 + signal.SIGINT
    except Exception as error:
        code = code_of(error)
        if code is None:
            raise
        level = NOTICE if isinstance(error, StoppedError) else logging.ERROR
        logger.log(level, line_of(error))
        return code


def _run(words: list[str]) -> int:
    if not words or words[0] in _HELP:
        print(_overview(COMMANDS))
        return DONE if words else USAGE
    if words == ["--version"]:
        print(f"bert-jax {versions.version('bert-jax')}")
        return DONE
    typed = list(itertools.takewhile(lambda word: word not in _HELP, words))
    if group := _group(typed):
        print(_overview(group))
        return DONE if len(words) > len(typed) else USAGE
    name = find(words)
    command, rest = COMMANDS[name], words[len(name.split()) :]
    # After the flags of a command that starts others comes their command line, with its own flags.
    own = list(
        itertools.takewhile(lambda w: w != "--" and (w[:1] == "-" or not command.starts), rest)
    )
    if "--help" in own or "-h" in own:
        print(_help(name, command, define(command, own)[0]))
        return DONE
    values, arguments = parse(name, command, rest)
    check_inputs(values)
    check_outputs(values, offline=command.checks_buckets)
    code = command.run(values, arguments) or DONE
    if not command.is_run:
        _check_output()
    return code


def _check_output() -> None:
    """Raises UserError if standard output could not be written completely to its disk. A closed
    pipe (`| head`) is not an error."""
    if isinstance(sys.stdout, TolerantStream):
        sys.stdout.flush()
        if sys.stdout.failure:
            raise UserError(f"standard output is not complete: {sys.stdout.failure}")


def find(words: Sequence[str]) -> str:
    """The command at the start of a command line; raises UsageError if there is none."""
    name = next((c for c in COMMANDS if list(words[: len(c.split())]) == c.split()), None)
    if name is None:
        count = next((n for n in range(1, len(words)) if not _group(words[:n])), len(words))
        group, word = " ".join(words[: count - 1]), words[count - 1]
        hint = nearest(word, COMMANDS)
        if group:  # only its own verbs are compared, as all begin alike
            verbs = {name.split()[count - 1] for name in _group(words[: count - 1])}
            near = nearest_name(word, verbs)
            hint = f"; did you mean {group} {near}?" if near else nearest(word, verbs)
        raise UsageError(f"unknown command {' '.join(words[:count])!r}{hint}")
    return name


def _group(words: Sequence[str]) -> list[str]:
    """The commands that begin with these words and have more; none without words."""
    return [name for name in COMMANDS if words and name.startswith(" ".join([*words, ""]))]


def _help_command(words: Sequence[str]) -> str:
    """The command line that shows the help for what was typed."""
    with contextlib.suppress(UsageError):
        return f"bert-jax {find(words)} --help"
    return "bert-jax --help"


def _overview(names: Iterable[str]) -> str:
    lines, listed = ["bert-jax COMMAND [--flag=value ...]", ""], list(names)
    width = max(map(len, listed)) + 2
    lines += [f"  {name:<{width}}{COMMANDS[name].summary}" for name in listed]
    lines += ["", "bert-jax COMMAND --help shows the flags of a command and an example."]
    return "\n".join(lines)


def _help(name: str, command: Command, values: flags.FlagValues) -> str:
    usage = f"bert-jax {name} [--flag=value ...]{command.arguments}"
    lines = [usage, "", f"  {command.summary}", ""]
    for flag in values:
        default = values[flag].default
        # The default of --config is a path: `define_config` has its name in the help.
        shown = "" if default in (None, []) or flag == "config" else f" (default {default})"
        lines.append(f"  --{flag:<15} {help_of(values, flag)}{shown}")
    return "\n".join([*lines, "", "Example:", f"  {command.example}"])
