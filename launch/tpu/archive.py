"""Packs the agent, with the modules that it imports, into one file that any Python 3.10 runs."""

import ast
import io
import zipfile
from pathlib import Path

_PACKAGE = "bert_jax"
_START = f"{_PACKAGE}.launch.tpu.agent.__main__"
_MAIN = f"import sys\n\nfrom {_START} import main\n\nsys.exit(main())\n"
_ROOT = Path(__file__).parents[2]


def agent_archive() -> bytes:
    """Returns a zip for `python3 agent.zip`, the same for the same modules."""
    files = {"__main__.py": _MAIN.encode(), f"{_PACKAGE}/__init__.py": b""}
    left = [_START]
    while left:
        path = _file(left.pop())
        name = f"{_PACKAGE}/{path.relative_to(_ROOT).as_posix()}"
        if name not in files:
            files[name] = path.read_bytes()
            left += _imported(path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _file(module: str) -> Path:
    path = _ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imported(path: Path) -> list[str]:
    """Returns the modules of this package that a file imports, and the packages they are in."""
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            parts = str(node.module).split(".")
            found += [".".join(parts[:end]) for end in range(2, len(parts) + 1)]
    return found
