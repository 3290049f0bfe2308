"""Loops compiled by numba, with a local cache of their machine code.

numba's own cache trusts its files: it unpickles an index and runs machine code from any folder it
is given, and damaged files crash the program, at worst with a signal. Here each compiled loop is
one file with a digest, in a folder that only this user can write to. A loop whose file is
damaged or incompatible is compiled again. Without such a folder, every process compiles all loops.

    ROOT/numba/VERSION/KEY.digested    sha256 of KEY and the rest, then the pickled compile result

ROOT is $NUMBA_CACHE_DIR, or `__pycache__` of this package, or the cache folder: the first usable.
"""

import ast
import functools
import hashlib
import logging
import pickle  # only for our own files, after their digest was checked
import sys
import sysconfig
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from numba.core import caching
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from bert_jax.errors import UserError
from bert_jax.storage.cache_dir import cache_dir
from bert_jax.storage.digested_files import DigestedFiles, own_folder

_log = logging.getLogger(__name__)

_PACKAGE: Final = Path(__file__).parents[1]
_TOP: Final = Path(__file__).parents[2]
_PREFIX: Final = __name__.rsplit(".", 3)[0]  # of `_TOP`
_MAX_BYTES: Final = 2**28
_INSTALLED: Final = {*sysconfig.get_paths().values()} - {sysconfig.get_path("data")}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.njit` that releases the GIL and caches machine code on disk if possible.

    A function is compiled for each combination of argument types, and the literal 0 has its own
    type: a counter that is passed on starts as np.int64(0), or its callees are compiled twice.

    A closure over compiled functions is known by their names too, so that each has machine code of
    its own; a closure over other values is not cached, since it depends on more than its source.
    """
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    inner: list[Any] = [getattr(value, "_cache", None) for value in closure]
    cached = all(isinstance(cache, _Cache) for cache in inner)
    if inner and cached:
        function.__qualname__ += f"[{', '.join(cache.name for cache in inner)}]"
    dispatcher = numba.njit(nogil=True)(function)
    try:
        sources = _digest(Path(function.__code__.co_filename))
    except (OSError, SyntaxError):  # imported from an archive, or typed in
        return dispatcher
    if cached:
        dispatcher._cache = _Cache(dispatcher, (sources, *(cache.sources for cache in inner)))
    return dispatcher


class _Cache(caching.NullCache):
    """The cache that a numba dispatcher reads before and writes after it compiles."""

    def __init__(self, dispatcher: Any, sources: tuple[Any, ...]) -> None:
        function = dispatcher.py_func
        line = function.__code__.co_firstlineno
        self.name = f"{function.__module__}.{function.__qualname__}:{line}"
        self.sources = sources
        self._dispatcher = dispatcher

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        files = _files()
        target_context.refresh()
        data = files and files.get(self._key(sig, target_context.codegen()))
        if not data:
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(data))
        except Exception:  # written by an incompatible compiler of the same version
            return None

    def save_overload(self, sig: Any, result: CompileResult) -> None:
        files = _files()
        if files and not result.lifted and not result.library.has_dynamic_globals:
            files.put(self._key(sig, result.codegen), dumps(result._reduce()))

    def _key(self, sig: Any, codegen: Any) -> str:
        processor = codegen.magic_tuple()  # with its features
        constants = _constants(self._dispatcher, frozenset(), set())
        about = (self.name, self.sources, llvmlite.__version__, sig, processor, constants)
        return hashlib.sha256(repr(about).encode()).hexdigest()


def _constants(value: Any, names: frozenset[str], seen: set[tuple[int, frozenset[str]]]) -> Any:
    """Returns the values that numba compiles into a function as constants, for `repr`.

    These are globals, also those of its callees and of modules, and may come from a file or the
    environment, so that the sources do not determine them.

    Args:
        names: that the code uses; only these are read from a module.
        seen: functions and modules that are not read again, with these names.
    """
    if isinstance(value, tuple):
        return [_constants(item, names, seen) for item in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, int | float | complex | str | bytes | np.generic | np.dtype | Enum):
        return value
    if (id(value), names) in seen:
        return None
    seen.add((id(value), names))
    if function := getattr(value, "py_func", None):  # of a dispatcher
        names = frozenset(_names(function.__code__))
        values, cells = function.__globals__, function.__closure__ or ()
        inner = [_constants(cell.cell_contents, names, seen) for cell in cells]
    elif isinstance(value, ModuleType):
        values, inner = vars(value), []
    else:
        return None
    found = sorted(names & values.keys())
    return inner, [(name, _constants(values[name], names, seen)) for name in found]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:  # comprehensions and functions inside
        if isinstance(inner, CodeType):
            yield from _names(inner)


@functools.cache
def _files() -> DigestedFiles | None:
    """Returns the cache of machine code; None, with a warning, if no folder can be used."""
    version = f"{sys.implementation.cache_tag}-numba-{numba.__version__}"
    reasons = []
    for root in _roots():
        try:
            folder = own_folder(root / "numba", version)
        except OSError as error:
            reasons.append(f"{root / 'numba'}: {error.strerror or error}")
            if isinstance(error, PermissionError) and not error.errno:  # others may write to it
                _warn(root / "numba", str(error.strerror))
            continue
        return DigestedFiles(folder, functools.partial(_warn, folder), _MAX_BYTES)
    _log.warning(
        f"compiled loops are not cached, every start compiles again ({'; '.join(reasons)})"
    )
    return None


def _warn(folder: Path, why: str) -> None:
    _log.warning(f"{folder}: compiled loops are not cached there ({why})")


def _roots() -> Iterator[Path]:
    if numba.config.CACHE_DIR:  # the user's NUMBA_CACHE_DIR comes first
        yield Path(numba.config.CACHE_DIR)
    yield _PACKAGE / "__pycache__"
    try:
        yield cache_dir()
    except UserError:  # no home folder
        return


def _digest(source: Path) -> bytes:
    """Returns a digest of a file and of all files that it imports, transitively, but for those of
    installed packages.

    A compiled function contains its callees and constants of other files, so it is compiled again
    if one of these files changes. The files are read when the function is defined,
    since later they may differ from the imported ones.
    """
    files, left = set(), {source}
    while left:
        files |= left
        left -= {Path(__file__)}  # no loop contains code from this file's imports
        left = {imported for path in left for imported in _read(path)[1]} - files
    digests = sorted((path.name, _read(path)[0]) for path in files)
    return hashlib.sha256(repr(digests).encode()).digest()


@functools.cache
def _read(source: Path) -> tuple[bytes, tuple[Path, ...]]:
    """Returns a file's digest, and the files that it imports outside functions: of this package,
    and of others that are not installed, such as those beside a user's module."""
    data = source.read_bytes()
    places: list[tuple[Path | None, str]] = []  # folder, None: of an absolute import; name
    for node in _outside_functions(ast.parse(data)):
        if isinstance(node, ast.Import):
            places += [(None, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = source.parents[node.level - 1] if node.level else None
            base = [node.module] if node.module else []
            names = [*base, *(".".join([*base, alias.name]) for alias in node.names)]
            places += [(folder, name) for name in names]
    files = (file for folder, name in places for file in _files_of(folder, name))
    return hashlib.sha256(data).digest(), tuple(files)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _outside_functions(child)


def _files_of(folder: Path | None, name: str) -> Iterator[Path]:
    """Yields the file of a module; none of a name that is no module, or of an installed one."""
    if folder is None and not name.startswith(f"{_PREFIX}."):
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if file.endswith(".py") and not any(map(Path(file).is_relative_to, _INSTALLED)):
            yield Path(file)
        return
    name = name if folder else name.removeprefix(_PREFIX).lstrip(".")
    path = (folder or _TOP) / name.replace(".", "/")
    yield from filter(Path.is_file, (path.with_name(f"{path.name}.py"), path / "__init__.py"))
