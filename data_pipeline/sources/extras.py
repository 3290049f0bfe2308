"""Imports optional packages, each of which an extra of bert-jax installs."""

import importlib
from typing import Any

from bert_jax.errors import UserError


def import_extra(module: str, extra: str, what: str) -> Any:
    """Returns a module; UserError, which says how to install its package, if that is missing.

    Args:
        what: what needs it, for the message.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{what} need {error.name}, which is not installed; pip install 'bert-jax[{extra}]'"
        ) from None
