"""The configs shipped with bert-jax, by name."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "configs"


def shipped() -> dict[str, Path]:
    """Name -> file of every config in `configs/`."""
    return {f.stem: f for f in sorted(_FOLDER.glob("*.py")) if f.stem != "__init__"}


def shipped_ablations() -> dict[str, Path]:
    """Name -> file of every ablation in `configs/ablations/`: "ablations/nsp"."""
    files = sorted((_FOLDER / "ablations").glob("*.py"))
    return {f"ablations/{f.stem}": f for f in files if f.stem != "__init__"}


class _ShippedAsConfigs(MetaPathFinder):
    """Finds `configs` in bert_jax if no other package of that name exists."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "configs":
            return None
        return importlib.util.spec_from_file_location(
            fullname, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
        )


def allow_configs_import() -> None:
    """Makes `from configs import base` work in a user's config file.

    A user's own package `configs` takes precedence. The wheel ships the configs inside bert_jax, so
    that it does not install `configs` into site-packages.
    """
    if not any(isinstance(finder, _ShippedAsConfigs) for finder in sys.meta_path):
        sys.meta_path.append(_ShippedAsConfigs())
