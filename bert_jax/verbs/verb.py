"""What a verb of the command line is."""

import dataclasses
from collections.abc import Callable, Sequence

from absl import flags

from bert_jax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Verb:
    """One thing the program does."""

    says: str
    example: str
    define: Callable[[flags.FlagValues, Sequence[str]], None]
    run: Callable[[flags.FlagValues, Sequence[str]], None]  # flags, words after the flags
    words: str = ""  # what may follow the flags


def need(values: flags.FlagValues, *names: str) -> None:
    """Raises UsageError for a flag that was not given."""
    for name in names:
        if not values[name].value:
            raise UsageError(f"--{name}=… is missing ({values[name].help})")
