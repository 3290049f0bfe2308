"""SkyPilot's own schema of a task.

BERT_JAX_SKY names a folder with SkyPilot, which `make .venv/sky` installs without the hundred
packages that it needs to run.
"""

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jsonschema  # type: ignore[import-untyped]

SCHEMAS = Path(os.environ.get("BERT_JAX_SKY", ""), "sky", "utils", "schemas.py")


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _schemas() -> ModuleType:
    """The file and its constants alone: what else it imports, it needs for other schemas."""
    names = ("sky", "sky.setup_files", "sky.skylet", "sky.utils")
    stubs = {name: mock.MagicMock() for name in names}
    stubs["sky"].__version__ = "0.14"
    with mock.patch.dict(sys.modules, stubs):
        stubs["sky.skylet"].constants = _module(SCHEMAS.parents[1] / "skylet" / "constants.py")
        module = _module(SCHEMAS)
    # As on SkyPilot's server: a client lets unknown keys of `job_recovery` pass.
    vars(module)["_allow_additional_properties"] = lambda: False
    # The key `config` of a task, which ours do not have: its schema imports half of SkyPilot.
    vars(module)["_task_config_schema"] = lambda: False
    return module


def wrong_in(task: dict[str, Any]) -> list[str]:
    """What SkyPilot would say about a task, one entry each; empty if it takes the task."""
    schemas = _schemas()
    parts = (
        (task, schemas.get_task_schema()),
        (task.get("resources", {}), schemas.get_resources_schema()),
    )
    return [
        error.message
        for part, schema in parts
        for error in jsonschema.Draft202012Validator(schema).iter_errors(part)
    ]
