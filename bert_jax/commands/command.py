"""Defines a command of `bert-jax` and parses its flags."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Sequence

from absl import flags

from bert_jax.commands.paths import define_input
from bert_jax.errors import UsageError, nearest, nearest_name


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of `bert-jax`."""

    summary: str
    example: str
    define: Callable[[flags.FlagValues, Sequence[str]], None]
    # (flags, arguments) -> exit code, None for 0; errors are raised.
    run: Callable[[flags.FlagValues, Sequence[str]], int | None]
    arguments: str = ""  # positional arguments, as shown in the help
    takes_ablation: bool = False  # its --config is an ablation
    starts: bool = False  # its positional arguments are the command line of another command
    is_run: bool = False  # its output is a log: it succeeds even if that cannot be written
    takes_modules: bool = True  # --module=PATH
    # It checks its outputs in buckets itself, after all that needs no network.
    checks_buckets: bool = False


def define(command: Command, words: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """Executes the modules that a command is given; returns its unparsed flags, and its words with
    its config's name as a path. UserError if no such config exists, or as `modules.load`."""
    # What follows -- is text, or options of Beam, but flags, too, where it is another command line.
    end = words.index("--") if "--" in words and not command.starts else len(words)
    values, rest = flags.FlagValues(), words[end:]
    words = [_with_home(_underscored(word)) for word in words[:end]]
    if command.takes_modules and any(word.startswith(("--module", "-module")) for word in words):
        words = _with_modules(words)
    if not command.starts and any(word.startswith("--config") for word in words):
        from bert_jax.config.config_files import with_paths

        words = with_paths(words, ablation=command.takes_ablation)
    define_flags(command, values, words)
    return values, [*words, *rest]


def define_flags(command: Command, values: flags.FlagValues, words: Sequence[str]) -> None:
    """Defines the flags of a command, its own and --module."""
    command.define(values, words)
    if command.takes_modules:
        text = (
            "a .py file of yours to execute first, which adds kinds of masking, sources, "
            "optimizers or tasks; may be repeated"
        )
        define_input(values, "module", text, repeated=True)


def _with_modules(words: Sequence[str]) -> list[str]:
    """Executes the modules that words name; returns the words, with each as one."""
    from bert_jax.config.config_files import joined
    from bert_jax.extensions.modules import load

    words = joined(words)
    for word in words:
        if word.startswith("--module="):
            load(word.removeprefix("--module="))
    return words


def parse(
    name: str, command: Command, words: Sequence[str], starter: flags.FlagValues | None = None
) -> tuple[flags.FlagValues, list[str]]:
    """Returns a command's parsed flags, and its positional arguments; errors as `define`, and
    UsageError for an unknown flag, an invalid or empty value, or an unexpected argument.

    starter: flags of the command that starts it, which come before its name.
    """
    values, words = define(command, words)
    try:
        arguments = values([name, *words])[1:]
    except flags.UnrecognizedFlagError as error:
        is_before = starter is not None and error.flagname in starter
        hint = f"; give it before {name}" if is_before else _flag_hint(error.flagname, values)
        raise UsageError(f"unknown flag --{error.flagname}{hint}") from None
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(_plain_reason(error)) from None
    for flag in values:  # a key of the configuration may be empty
        value = values[flag].value if not flag.startswith("config.") else None
        if value == "" or (isinstance(value, list) and "" in value):
            raise UsageError(f"--{flag}= has no value; give one, or leave the flag out")
    if arguments and not command.arguments:
        raise UsageError(f"{name} takes only --flag=value, not {arguments[0]!r}")
    return values, arguments


def given_flags(values: flags.FlagValues) -> list[str]:
    """Returns the flags that were given, each as a word to type."""
    given = [values[name].serialize() for name in values if values[name].present]
    return [word for each in given for word in each.split("\n")]  # of a flag that was repeated


def _plain_reason(error: Exception) -> str:
    """Returns what absl says about a flag, without Python's words for numbers."""
    reason = " ".join(str(error).split())
    reason = re.sub(r"invalid literal for int\(\) with base 10: .*", "not a whole number", reason)
    return re.sub(r"could not convert string to float: .*", "not a number", reason)


def _flag_hint(name: str, values: flags.FlagValues) -> str:
    """Returns the end of the message about an unknown flag: the flag or configuration key that was
    probably meant."""
    if "config" not in values:
        near = nearest_name(name, values)
        return f"; did you mean --{near}?" if near else nearest(name, values)
    from bert_jax.config.schema import Config
    from bert_jax.config.serialization import flatten, to_dict
    from bert_jax.config.unknown_keys import translation

    if name.startswith("config."):
        return "; give --config=… before it"
    keys = [f"config.{key}" for key in flatten(to_dict(Config()))]
    near = nearest_name(name, values) or nearest_name(name, keys)
    return translation(name, "--config.") or (f"; did you mean --{near}?" if near else "")


def _underscored(word: str) -> str:
    """Replaces hyphens in a flag's name, as in --strict-restore, with underscores."""
    flag, sign, value = word.partition("=")
    if not flag.startswith("--") or flag.startswith("--config"):
        return word
    return "--" + flag[2:].replace("-", "_") + sign + value


def _with_home(word: str) -> str:
    """Expands ~ in --out=~/store and --source=books:~/books, where shells do not."""
    flag, sign, value = word.partition("=")
    if not flag.startswith("--"):
        return word
    home = os.path.expanduser("~")
    return flag + sign + re.sub(r"^(\w+:)?~(?=/|$)", lambda kind: (kind[1] or "") + home, value)


class _FiniteParser(flags.FloatParser):
    """Parses a number; absl's own bounds let NaN pass."""

    def convert(self, argument: int | float | str) -> float:
        value = super().convert(argument)
        if not math.isfinite(value):
            raise ValueError("not a finite number")
        return value


def define_number(
    values: flags.FlagValues,
    name: str,
    default: float | None,
    what: str,
    least: float | None = None,
    most: float | None = None,
) -> None:
    """Defines a flag with a finite number, within bounds."""
    parser, as_text = _FiniteParser(least, most), flags.ArgumentSerializer[float]()
    flags.DEFINE(parser, name, default, what, flag_values=values, serializer=as_text)


def define_cpu_devices(values: flags.FlagValues) -> None:
    """Defines --cpu_devices, for commands that use JAX."""
    devices = "number of simulated CPU devices, used in place of any accelerators"
    flags.DEFINE_integer("cpu_devices", None, devices, 1, flag_values=values)


def define_weights(
    values: flags.FlagValues, what: str = "last: those of the step; ema: their average"
) -> None:
    """Defines --weights, see `config.optimizer.ema_decay`."""
    flags.DEFINE_enum("weights", "last", ["last", "ema"], what, flag_values=values)


def need(values: flags.FlagValues, *names: str) -> None:
    """Raises UsageError if one of the flags was not given."""
    for name in names:
        if not values[name].value:
            raise UsageError(f"--{name}=… is missing ({help_of(values, name)})")


def help_of(values: flags.FlagValues, name: str) -> str:
    """Returns a flag's help, without the line that absl adds to flags that may be repeated."""
    return values[name].help.partition("\n")[0].rstrip(";")
