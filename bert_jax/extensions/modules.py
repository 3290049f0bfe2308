"""The user's files that add rows to a `Registry`: a module of --module, a config file, or any file
of Python.

What a run or a store was made with is known by digest. It is executed only when the user names it.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass, field
from importlib.abc import SourceLoader
from pathlib import Path
from types import FrameType
from typing import Final

from bert_jax.errors import UserError


@dataclass(frozen=True)
class Module:
    """A file that adds rows, as it is when it does.

    Attributes:
        path: absolute; "" for what was typed into a session of Python.
        data: its bytes.
        import_name: by which Python has imported it; not always a name that others can import.
    """

    path: str
    data: bytes = field(repr=False)
    import_name: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest() if self.path else ""


_executed: Final[dict[str, Module]] = {}  # by path


def load(path: str) -> None:
    """Executes a module of the user.

    Raises:
        UserError: the file cannot be read or is no Python, or the module fails.
    """
    if not path.endswith(".py"):
        raise UserError(f"--module={path}: give a .py file")
    if not os.path.isfile(path):
        raise UserError(f"--module={path}: no such file")
    try:
        module = Module(os.path.abspath(path), Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"--module={path}: cannot be read ({error.strerror})") from None
    try:
        execute(module)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise UserError(f"--module={path}: {_reason(error, module.path)}") from error


def execute(module: Module) -> None:
    """Executes a module, unless this process has; raises what it raises."""
    if _executed.get(module.path) == module:
        return
    name = f"bert_jax_module_{module.sha256[:16]}"  # hides no module that another one imports
    loader = _Loader(module)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    _executed[module.path] = module
    try:
        loader.exec_module(made)
    except BaseException:
        del _executed[module.path]
        raise


class _Loader(SourceLoader):
    """Makes a module of the bytes that were read once, so that their digest is what is executed,
    also where the file is not."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def get_filename(self, fullname: str) -> str:
        return self._module.path

    def get_data(self, path: str) -> bytes:
        return self._module.data


def repeat(module: Module) -> None:
    """Executes in a worker process what added rows in the process that started it."""
    if module.import_name:
        try:
            importlib.import_module(module.import_name)
            return
        except ImportError:  # a script, or another machine
            pass
    if module.path:
        execute(module)


def module_of(frame: FrameType) -> Module:
    """Returns the file of a function that runs, or of the top level of a module."""
    path = os.path.abspath(frame.f_code.co_filename)
    if path in _executed:
        return _executed[path]
    if not os.path.isfile(path):  # typed in
        return Module("", b"")
    return Module(path, Path(path).read_bytes(), frame.f_globals.get("__name__", ""))


def _reason(error: BaseException, path: str) -> str:
    """Returns an error of a module as one line, with the line of the module where it was raised."""
    if isinstance(error, UserError):
        return str(error)
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__)
             if each.filename == path]  # fmt: skip
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    said = " ".join(f"{type(error).__name__}: {text}".split())
    return f"line {line}: {said}" if line else said
