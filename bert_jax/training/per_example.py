"""Values of every held-out example, and the file that holds them.

    bert-jax evaluate --workdir=run --per_example=FILE.npz

For each form F (`own` or `PAIRING/MASKING`) and each objective O, arrays over its N examples in the
order of the text:

    F/document    int64, index among the held-out documents; of a pair or a block, of its first one
    F/source      uint16, index into `sources` of the JSON text in `about`
    F/O/loss      float32, summed over the predictions of the example, in nats
    F/O/count     float32, number of its predictions
    F/O/correct   float32, how many of them are right; missing where nothing can be right
"""

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage import json_record
from bert_jax.storage.npz_file import names_in, npz_bytes, read_npz
from bert_jax.storage.outputs import OutputKind, write_output
from bert_jax.storage.reader_errors import one_line
from bert_jax.storage.remote import storage_errors

ABOUT: Final = "about"
_FORM: Final = {
    "run_id": object,
    "step": json_record.count,
    "held_out": json_record.text,
    "sources": [json_record.text],
    "forms": {str: {"settings": dict, "metrics": dict}},
    "seconds": json_record.number,
    "bigram_loss?": json_record.number,  # of text
}
_SUMS: Final = ("loss", "count", "correct")


class DamagedValuesError(UserError):
    """A file that `write` did not write."""


@dataclasses.dataclass(frozen=True)
class PerExample:
    """Sums over the predictions of each example, in the order of the text."""

    document: np.ndarray  # int64 [N]
    source: np.ndarray  # uint16 [N]
    sums: Mapping[str, Mapping[str, np.ndarray]]  # objective -> loss, count, correct: float32 [N]
    # Objective -> loss, correct: [N], of its trivial prediction; not in the file.
    baselines: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_rows(
        cls,
        number: np.ndarray,
        document: np.ndarray,
        source: np.ndarray,
        rows: Mapping[str, Mapping[str, np.ndarray]],
        baselines: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({}),
    ) -> "PerExample":
        """Returns the values of rows in any order.

        Args:
            number: of the example of each row, in the order of the text.
            rows: objective -> name -> sums of each row [N, …], of which these are taken.
            baselines: objective -> name -> those of its trivial prediction.
        """
        order = np.argsort(number, kind="stable")
        sums = {
            objective: {name: own[name][order] for name in _SUMS if name in own}
            for objective, own in rows.items()
        }
        trivial = {
            objective: {name: values[order] for name, values in own.items()}
            for objective, own in baselines.items()
        }
        return cls(document[order], source[order], sums, trivial)

    def arrays(self, form: str) -> dict[str, np.ndarray]:
        """Returns the arrays by their names in the file."""
        named = {f"{form}/document": self.document, f"{form}/source": self.source}
        for objective, own in self.sums.items():
            named |= {f"{form}/{objective}/{name}": values for name, values in own.items()}
        return named


def write(
    path: epath.PathLike, by_form: Mapping[str, PerExample], about: Mapping[str, Any]
) -> None:
    """Writes the file atomically, as `write_output` does.

    about: JSON values that identify what was evaluated.
    """
    arrays = {ABOUT: np.array(json.dumps(about))}
    for form, examples in by_form.items():
        arrays |= examples.arrays(form)
    write_output(path, npz_bytes(arrays, compressed=True), EXAMPLE_VALUES)


def read_losses(path: epath.PathLike) -> tuple[dict[str, PerExample], dict[str, Any]]:
    """Returns the values of each form, and what was evaluated.

    Raises:
        DamagedValuesError: not a file that `write` wrote.
        UserError: it cannot be read.
    """
    try:
        with storage_errors(path):
            arrays = read_npz(path)
        about = json_record.parse(str(arrays.get(ABOUT)), _FORM)
        return {form: _read_form(form, arrays) for form in about["forms"]}, about
    except ValueError as error:
        raise DamagedValuesError(
            f"{path}: not a file of `bert-jax evaluate --per_example` ({one_line(error)})"
        ) from error


def _read_form(form: str, arrays: Mapping[str, np.ndarray]) -> PerExample:
    sums: dict[str, dict[str, np.ndarray]] = {}
    for name, values in arrays.items():
        rest = name.removeprefix(f"{form}/")
        objective, slash, kind = rest.partition("/")
        if name.startswith(f"{form}/") and slash and kind in _SUMS:
            sums.setdefault(objective, {})[kind] = values
    document, source = (arrays.get(f"{form}/{name}") for name in ("document", "source"))
    if document is None or source is None:
        raise ValueError(f"it has no documents of {form}")
    examples = PerExample(document, source, sums)
    of_one_length = [document, source, *(x for own in sums.values() for x in own.values())]
    for values in of_one_length:
        if values.shape != (len(document),) or values.dtype.kind not in "iuf":
            raise ValueError(f"its arrays of {form} do not belong together")
    return examples


def _is_ours(path: epath.PathLike) -> bool:
    """Returns whether `write` wrote a file, which may be replaced."""
    try:
        names = names_in(path)
    except ValueError:
        return False
    return ABOUT in names and {"document", "source"} <= {n.rpartition("/")[2] for n in names}


# Those of a task are beside its workdir, in the run that it started from.
EXAMPLE_VALUES: Final = OutputKind("file of examples", _is_ours, places=("tasks",))
