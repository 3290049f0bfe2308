"""The formats of exported examples: a module each, imported when it is used."""

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.data_pipeline.assemble import Batch

# The extra of bert-jax that each needs.
EXTRAS: Final = {"parquet": "arrow", "tfrecord": "tfds"}


class Format(Protocol):
    """A module of this package."""

    SUFFIX: str
    NEEDS_PAIRS: bool
    HOLDS_REPEATS: bool  # a position that is predicted several times

    def encode(self, batches: "Iterable[Batch]", pairing: str) -> bytes: ...


def find_format(name: str, pairing: str, masking: str) -> Format:
    """Returns a format by its name; UserError if its libraries are not installed, or it cannot hold
    the examples of this pairing and masking."""
    try:
        found: Format = importlib.import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"--format={name} needs {error.name}, which is not installed; "
            f"pip install 'bert-jax[{EXTRAS[name]}]'"
        ) from None
    if found.NEEDS_PAIRS and pairing not in PAIRS:
        raise UserError(
            f'--format={name} needs sentence pairs, but config.data.pairing="{pairing}" makes '
            f"none; set it to {' or '.join(PAIRS)}, or choose --format=parquet"
        )
    if MODES[masking].repeats and not found.HOLDS_REPEATS:
        raise UserError(
            f"--format={name} has one label for each position, but config.data.masking="
            f'"{masking}" predicts some twice; choose another kind of masking'
        )
    return found
