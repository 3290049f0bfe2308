"""Private names of libraries: each that the product uses, why, and the test of what it does.

A release may remove or change a private name without notice, so the product uses one only where no
public name exists. `make nightly` runs these tests with the newest releases; when a release in
requirements/core.txt changes, check whether it has a public name by now, and set RELEASES.
"""

import ast
import functools
import importlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    path
    for folder in ("bert_jax", "configs", "data_pipeline", "launch")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
RELEASES = {"jax": "0.10.2", "orbax-checkpoint": "0.12.8", "numba": "0.68.1"}


class PrivateName(NamedTuple):
    """name: without its module for an attribute of an object. test: of the behavior relied on."""

    file: str
    name: str
    why: str
    test: str


CACHE, NUMBA = "bert_jax/runtime/compile_cache.py", "data_pipeline/random/numba_jit.py"
ORBAX, CLUSTER = "bert_jax/checkpoint/orbax_io.py", "bert_jax/distributed/cluster.py"
PEERS = "bert_jax/distributed/peers.py"

_OWN_CACHE = (
    "JAX's own cache never replaces a damaged entry, and warns of it at every start; writes only "
    "in process 0; fails silently on a full disk. With jax_compilation_cache_dir alone, "
    "test_two_processes_find_theirs_and_damage_is_compiled_again, "
    "test_a_damaged_program_is_compiled_and_kept_again and "
    "test_a_cache_that_cannot_be_used_is_one_line fail"
)
_DAMAGE = "tests/runtime/test_compile_cache.py::test_a_damaged_program_is_compiled_and_kept_again"
_OWN_CODE = (
    "numba's own cache unpickles an index and runs machine code from any folder, and a damaged "
    "file ends the process; its cache locators choose the folder, not the format"
)
_CODE = "tests/data_pipeline/test_machine_code.py::"
_FOUND = _CODE + "test_code_is_found_for_every_type_it_was_compiled_for"
_DETECTION = (
    "jax.distributed.initialize detects and starts at once; the run must first meet the other "
    "processes, and a cluster that does not answer is reported by name"
)
_RETRIES = (
    "TensorStore retries a request for a quarter of an hour; Orbax has no option for its context"
)
_HERE = "tests/project/test_private_names.py::"

_CUDNN = (
    "check_cudnn_version: JAX asks it when it traces the kernel, and has no public name for the "
    "version of cuDNN; while compiling for a described GPU it must answer for that"
)

PRIVATE_NAMES = (
    PrivateName(
        "bert_jax/ops/attention/cudnn.py",
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version",
        _CUDNN,
        _HERE + "test_jax_says_that_cudnn_is_missing",
    ),
    PrivateName(
        "bert_jax/aot/gpu_compiler.py",
        "jax._src.cudnn.fused_attention_stablehlo",
        _CUDNN,
        "tests/commands/test_compile_gpus.py::test_a_described_gpu_has_the_cudnn_of_its_compiler",
    ),
    PrivateName(CACHE, "jax._src.compilation_cache", _OWN_CACHE, _DAMAGE),
    PrivateName(CACHE, "jax._src.compiler", _OWN_CACHE, _DAMAGE),
    PrivateName(CACHE, "jax._src.compiler._cache_write", _OWN_CACHE, _DAMAGE),
    PrivateName(CACHE, "jax._src.compilation_cache_interface.CacheInterface", _OWN_CACHE, _DAMAGE),
    PrivateName(
        CLUSTER,
        "jax._src.clusters.ClusterEnv",
        _DETECTION,
        "tests/distributed/test_distributed.py::test_slurm",
    ),
    PrivateName(
        CLUSTER,
        "jax._src.clusters.ClusterEnv._cluster_types",
        _DETECTION,
        "tests/distributed/test_distributed.py::test_open_mpi",
    ),
    PrivateName(
        PEERS,
        "jax._src.distributed",
        "global_state.client: JAX's key-value store, in which all processes exchange texts",
        _HERE + "test_the_key_value_store_has_the_methods_that_are_called",
    ),
    PrivateName(
        PEERS,
        "jax._src.xla_bridge",
        "backends_are_initialized: jax.distributed.is_initialized does not cover a program that "
        "has used JAX without starting it as a job",
        _HERE + "test_jax_reports_whether_it_has_started",
    ),
    PrivateName(
        ORBAX,
        "orbax.checkpoint._src.serialization.tensorstore_utils",
        _RETRIES,
        _HERE + "test_orbax_limits_the_retries_of_tensorstore",
    ),
    PrivateName(
        ORBAX,
        "orbax.checkpoint._src.serialization.tensorstore_utils._BASE_TS_CONTEXT",
        _RETRIES,
        _HERE + "test_orbax_limits_the_retries_of_tensorstore",
    ),
    PrivateName(
        ORBAX,
        "orbax.checkpoint._src.serialization.tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT",
        _RETRIES,
        _HERE + "test_orbax_limits_the_retries_of_tensorstore",
    ),
    PrivateName(
        ORBAX,
        "_SignalingThread",
        "Orbax raises the first error while its threads still write; it has no way to wait for "
        "them all",
        _HERE + "test_the_threads_of_orbax_bear_this_name",
    ),
    PrivateName(NUMBA, "numba.core.caching", _OWN_CODE, _FOUND),
    PrivateName(NUMBA, "numba.core.compiler.CompileResult", _OWN_CODE, _FOUND),
    PrivateName(NUMBA, "numba.core.serialize.dumps", _OWN_CODE, _FOUND),
    PrivateName(NUMBA, "numba.core.compiler.CompileResult._rebuild", _OWN_CODE, _FOUND),
    PrivateName(NUMBA, "_reduce", _OWN_CODE, _FOUND),
    PrivateName(NUMBA, "_cache", _OWN_CODE, _FOUND),
    PrivateName(
        "bert_jax/ops/attention/cudnn.py",
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version",
        "JAX asks it when it traces cuDNN's attention, and raises; no public name has the version",
        "tests/reporting/test_doctor.py::test_cudnns_version_is_the_one_that_jax_asks_for",
    ),
)

# Public in spite of their underscore: of named tuples, and of the C library.
PUBLIC = {"_replace", "_fields", "_asdict", "_exit"}
# Where a string is the name of an attribute or of a class.
BY_NAME = re.compile(r"(getattr|setattr|hasattr)\(.*\)$|type\([^()]*\)\.__name__ [=!]= [^ ]*$")


def is_private(name: str) -> bool:
    return re.search(r"(^|\.)_[^_.]", name) is not None or name.startswith("numba.core")


def own_names(tree: ast.Module) -> set[str]:
    """Returns the functions, classes and attributes that a file defines itself."""
    return {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        or (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and getattr(node.value, "id", "") == "self"
        )
    }


def private_names(text: str) -> Iterator[str]:
    """Yields every private name that a file imports, takes from an object or compares with."""
    tree = ast.parse(text)
    own, imported = own_names(tree) | PUBLIC, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    yield from filter(is_private, imported.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            value = ast.unparse(node.value)
            if value not in ("self", "cls"):
                yield f"{imported[value]}.{node.attr}" if value in imported else node.attr
        elif isinstance(node, ast.Call | ast.Compare):
            texts = (x.value for x in ast.iter_child_nodes(node) if isinstance(x, ast.Constant))
            names = [text for text in texts if isinstance(text, str) and is_private(text)]
            yield from names if names and BY_NAME.match(ast.unparse(node)) else ()


def test_every_private_name_is_listed_with_a_reason() -> None:
    used = {
        (str(path.relative_to(ROOT)), name)
        for path in FILES
        for name in private_names(path.read_text(encoding="utf-8"))
    }
    assert used == {(entry.file, entry.name) for entry in PRIVATE_NAMES}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import jax._src.core", "jax._src.core"),
        ("from jax import _src as s", "jax._src"),
        ("def f():\n    from optax._src import base", "optax._src.base"),
        ("import flax.nnx as nnx\nnnx._flatten(1)", "flax.nnx._flatten"),
        ("console._live.stop()", "_live"),
        ("type(x).__name__ in ('A',) or type(x).__name__ == '_B'", "_B"),
        ("getattr(jax, '_hidden')", "_hidden"),
    ],
)
def test_a_private_name_is_found(text: str, name: str) -> None:
    assert list(private_names(text)) == [name]


def test_names_of_ones_own_are_not_private() -> None:
    own = "class A:\n    def __init__(self):\n        self._x = 1\n\na._x, a.__doc__, t._replace()"
    assert list(private_names(own)) == []


@pytest.mark.parametrize("entry", PRIVATE_NAMES, ids=lambda entry: entry.name)
def test_a_private_name_exists_and_a_test_that_always_runs_covers_it(entry: PrivateName) -> None:
    if "." in entry.name:
        module, _, attribute = entry.name.rpartition(".")
        functools.reduce(getattr, [attribute], imported(module))
    file, _, test = entry.test.partition("::")
    (node,) = (
        node
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == test
    )
    assert not re.search("slow|nightly|torch", " ".join(map(ast.unparse, node.decorator_list)))


def imported(name: str) -> object:
    """Returns a module, or a class in a module."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def test_the_list_was_checked_with_the_locked_releases() -> None:
    lock = (ROOT / "requirements/core.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    assert {name: pinned[name] for name in RELEASES} == RELEASES


def test_jax_says_that_cudnn_is_missing() -> None:
    from jax._src.lib import cuda_versions

    from bert_jax.ops.attention import cudnn

    if cuda_versions is not None:
        pytest.skip("the CUDA libraries are installed")
    with pytest.raises(RuntimeError, match="cuDNN"):
        cudnn.version()


def test_the_key_value_store_has_the_methods_that_are_called() -> None:
    from jax._src import distributed
    from jax._src.lib import _jax

    assert hasattr(distributed.global_state, "client")
    for method in (
        "key_value_set", "key_value_try_get", "key_value_delete", "key_value_dir_get",
        "blocking_key_value_get",
    ):  # fmt: skip
        assert callable(getattr(_jax.DistributedRuntimeClient, method))


def test_jax_reports_whether_it_has_started() -> None:
    import jax
    from jax._src import xla_bridge

    jax.devices()
    assert xla_bridge.backends_are_initialized() is True


@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_orbax_limits_the_retries_of_tensorstore(use_ocdbt: bool) -> None:
    from orbax.checkpoint._src.serialization import tensorstore_utils

    from bert_jax.checkpoint import orbax_io  # noqa: F401, sets the limit

    context = tensorstore_utils.get_ts_context(use_ocdbt=use_ocdbt)
    assert context.spec.to_json()["gcs_request_retries"]["max_retries"] == 5


def test_the_threads_of_orbax_bear_this_name(tmp_path: Path, monkeypatch) -> None:
    import numpy as np
    from etils import epath

    from bert_jax.checkpoint import orbax_io

    started, start = [], threading.Thread.start

    def watched(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", watched)
    orbax_io.write(epath.Path(tmp_path / "3"), {"params": {"a": np.ones(3)}}, {})
    writers = [thread for thread in started if type(thread).__name__ == "_SignalingThread"]
    assert writers
    assert not any(thread.is_alive() for thread in writers)
    assert type(writers[0]).join is not threading.Thread.join
