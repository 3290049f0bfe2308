"""A command of `bert-jax`, and reading its flags."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags

from bert_jax.errors import UsageError, UserError


@dataclasses.dataclass(frozen=True)
class Command:
    """One thing that a user types behind `bert-jax`."""

    summary: str
    example: str
    define: Callable[[flags.FlagValues, Sequence[str]], None]
    # (flags, arguments) -> exit code, None for 0; errors have their own.
    run: Callable[[flags.FlagValues, Sequence[str]], int | None]
    arguments: str = ""  # what may follow the flags
    starts: bool = False  # what follows the flags is the command line of another command
    is_run: bool = False  # its output is a log: where that cannot be written, it still succeeds


def define(command: Command, words: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """A command's flags, not yet parsed, and its words with the path of its config.

    Raises:
        UserError: there is no such config.
    """
    values, words = flags.FlagValues(), [_underscored(word) for word in words]
    if not command.starts and any(word.startswith("--config") for word in words):
        from bert_jax.config.files import resolve

        words = resolve(words)
    command.define(values, words)
    return values, words


def parse(name: str, command: Command, words: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """A command's flags as the words behind its name give them, and what follows the flags.

    Raises:
        UsageError: a flag that does not exist, a value that does not fit, a word too many.
        UserError: there is no such config.
    """
    values, words = define(command, words)
    try:
        arguments = values([name, *words])[1:]
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    if arguments and not command.arguments:
        raise UsageError(f"{name} takes only --flag=value, not {arguments[0]!r}")
    return values, arguments


def _underscored(word: str) -> str:
    """A flag as it is defined, where its name was written with hyphens: --strict-restore."""
    flag, sign, value = word.partition("=")
    if not flag.startswith("--") or flag.startswith("--config"):
        return word
    return "--" + flag[2:].replace("-", "_") + sign + value


def define_cpu_devices(values: flags.FlagValues) -> None:
    """The flag of commands that compute."""
    devices = "number of devices that a CPU acts as"
    flags.DEFINE_integer("cpu_devices", None, devices, 1, flag_values=values)


def need(values: flags.FlagValues, *names: str) -> None:
    """Raises UsageError for a flag that was not given."""
    for name in names:
        if not values[name].value:
            raise UsageError(f"--{name}=… is missing ({help_of(values, name)})")


def help_of(values: flags.FlagValues, name: str) -> str:
    """What a flag says of itself, without the line that absl adds to one that may be repeated."""
    return values[name].help.partition("\n")[0].rstrip(";")


def check_out(path: str | None, may_replace: Callable[[Path], bool], kind: str) -> None:
    """Raises UserError where a file of this name cannot be written: before the work, not after.

    Args:
        may_replace: whether an existing file is one of those that the command writes, and may be
            replaced. An empty file always may.
        kind: what it writes, for the message.
    """
    if not path or "://" in path:
        return
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{file}: a folder; give the name of a file")
    if not file.parent.is_dir():
        raise UserError(f"{file}: there is no folder {file.parent}; make it, or choose another")
    try:
        free = not file.exists() or (
            file.is_file() and (file.stat().st_size == 0 or may_replace(file))
        )
    except OSError as error:
        raise UserError(f"{file}: cannot be looked at ({error.strerror})") from None
    if not free:
        raise UserError(f"{file}: exists and is no {kind} of bert-jax; choose another name")


def check_page(path: str | None) -> None:
    """`check_out` for a page."""
    if path:
        from bert_jax.reporting.html import is_page

        check_out(path, is_page, "page")
