"""What a verb of the command line is."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags

from bert_jax.errors import UsageError, UserError


@dataclasses.dataclass(frozen=True)
class Verb:
    """One thing the program does."""

    says: str
    example: str
    define: Callable[[flags.FlagValues, Sequence[str]], None]
    # Flags, words after the flags -> exit code, where it is not 0 and no error says it.
    run: Callable[[flags.FlagValues, Sequence[str]], int | None]
    words: str = ""  # what may follow the flags
    starts: bool = False  # what follows the flags is the command line of another verb
    is_run: bool = False  # its output is a log: where that cannot be written, it still succeeds


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
        may_replace: whether a file that is there is one of those that the verb writes, and may be
            written anew. An empty file always may.
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
