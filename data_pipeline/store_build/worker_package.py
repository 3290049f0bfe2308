"""The package that workers on other machines install: `data_pipeline` and the modules of bert_jax
that it imports, with the packages that they need there in the versions of this machine, and
without JAX.
"""

import importlib.metadata
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import kind_of
from bert_jax.data_pipeline.store_build.shard_files import Unit

_NAME: Final = "bert-jax-worker"
_ALWAYS: Final = ("etils[epath]", "gcsfs", "numpy", "rich", "sentencex", "tokenizers")
_FILES: Final = (
    "errors.py", "exit_codes.py", "extensions/*.py", "storage/*.py", "data_pipeline/**/*.py",
    "data_pipeline/**/*.toml",
)  # fmt: skip
_SETUP: Final = """from setuptools import setup

setup(
    name={name!r}, version={version!r}, packages={packages!r}, install_requires={requires!r},
    package_data={{"": ["*.toml"]}},
)
"""


def write_package(folder: Path, units: Sequence[Unit]) -> Path:
    """Writes a source distribution that pip installs.

    Args:
        units: whose libraries it requires.

    Returns:
        the archive, in `folder`.
    """
    top = Path(__file__).parents[2]  # of bert_jax
    modules = {
        f"bert_jax/{path.relative_to(top).as_posix()}": path
        for pattern in _FILES
        for path in top.glob(pattern)
    }
    packages = {name.rpartition("/")[0].replace("/", ".") for name in modules}
    version = importlib.metadata.version("bert-jax")
    setup = _SETUP.format(
        name=_NAME, version=version, packages=sorted({"bert_jax", *packages}), requires=_pins(units)
    )
    files = {"setup.py": setup.encode(), "bert_jax/__init__.py": b""}
    files |= {name: path.read_bytes() for name, path in sorted(modules.items())}
    archive = folder / f"{_NAME}-{version}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{_NAME}-{version}/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return archive


def _pins(units: Sequence[Unit]) -> list[str]:
    """Returns the requirements of some units, each with the version that this machine has."""
    names = set(_ALWAYS)
    for kind in {kind_of(unit.source) for unit in units}:
        names |= {*kind.libraries, *kind.packages}
    if any(unit.signatures for unit in units):
        names.add("rensa")
    return [
        f"{name}=={importlib.metadata.version(name.partition('[')[0])}" for name in sorted(names)
    ]
