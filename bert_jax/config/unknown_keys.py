"""Hints for names that are not configuration keys: misspelled, or the name in other programs.

The other names are those of transformers (`TrainingArguments`, `run_mlm`), google-research/bert,
Megatron, PyTorch and optax.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bert_jax.errors import nearest_name

_TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_KEY_OF: Final = {name: key for key, names in _TABLE["keys"].items() for name in names.split()}
_ADVICE_OF: Final = {
    name: text for names, text in _TABLE["advice"].items() for name in names.split()
}


def translation(name: str, prefix: str = "") -> str:
    """Returns the end of an error message about a name of other programs; "" for other names.

    prefix: of the suggested key.
    """
    leaf = name.rpartition(".")[2].lower().replace("-", "_")
    if advice := _ADVICE_OF.get(leaf):
        return f"; {advice.format(prefix)}"
    key = _KEY_OF.get(leaf)
    return f"; did you mean {prefix}{key}?" if key and key != name else ""


def key_hint(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about a name that is not one of the flattened keys: the
    key that was probably meant, or the keys of its section."""
    keys = list(known)
    if hint := translation(name):
        return hint
    if near := nearest_name(name, keys):
        return f"; did you mean {near}?"
    section = name.rpartition(".")[0]
    within = [key for key in keys if key.startswith(f"{section}.")] if section else keys
    first = len(section) + 1 if within and section else 0
    names = sorted({key[first:].partition(".")[0] for key in within or keys})
    return f"; valid: {', '.join(names)}"
