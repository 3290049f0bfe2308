"""Every file is read through `storage`: a regular file, with a limit, and one tuple of errors.

What opens a file in another way is found here, and is allowed only with a reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_file import for_every

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    path
    for folder in ("bert_jax", "configs", "data_pipeline", "launch")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
STORAGE = "bert_jax/storage"
# Calls that read a file, by the end of their dotted name.
READS = (
    "read_bytes", "read_text", "open", "np.load", "np.fromfile", "np.memmap", "open_memmap",
    "json.load", "pickle.load", "fdopen", "tokenize.open", "tarfile.open", "ZipFile", "torch.load",
    "load_file", "safe_open", "memory_map", "from_file", "run_path", "ParquetFile",
)  # fmt: skip
# Methods of that name which open no path of a file.
NO_FILES = ("Workdir.open", "AblationDir.open", "archive.open", "os.open", "direct.open",
            "_direct.open", "log.open", "_log.open")  # fmt: skip
# Functions of storage that have these names.
OURS = {"read_bytes", "open_regular", "open_bytes"}

CHECKED = "checked with check_regular before, or listed among regular files"
OWN = "written by this process, or by the processes of one build"
VERIFIED = "its size and digest were verified before"
SYSTEM = "a file of the system or of this package"
HOST = "runs on a machine of its own, with files that the launcher wrote there"
ALLOWED = {
    "bert_jax/api/vector_files.py": "written by this process, or a stream of open_bytes",
    "bert_jax/ablation/run.py": "a pipe of its own",
    "bert_jax/aot/installed_files.py": "a file that pip installed, which is_file was asked about",
    "bert_jax/config/config_files.py": "a program, which is_file was asked about",
    "bert_jax/config/unknown_keys.py": SYSTEM,
    "bert_jax/extensions/modules.py": "a program, which isfile was asked about",
    "bert_jax/convert/safetensors_file.py": CHECKED,
    "bert_jax/convert/model_folders.py": CHECKED,
    "bert_jax/convert/weight_files.py": CHECKED,
    "bert_jax/runtime/compile_cache.py": SYSTEM,
    "bert_jax/runtime/memory.py": SYSTEM,
    "bert_jax/training/profiling.py": OWN,
    "data_pipeline/store_build/beam.py": "the tokenizer, which was loaded before",
    "data_pipeline/store_build/near_duplicates.py": OWN,
    "data_pipeline/store_build/shard_files.py": VERIFIED,
    "data_pipeline/store_build/worker_package.py": SYSTEM,
    "data_pipeline/text/wikitext_words.py": SYSTEM,
    "data_pipeline/plan/column_files.py": "a cache; numpy maps a regular file only",
    "data_pipeline/random/numba_jit.py": SYSTEM,
    "data_pipeline/sources/arrow.py": CHECKED,
    "data_pipeline/sources/parquet.py": "a stream of open_bytes",
    "bert_jax/finetune/tasks/parquet_rows.py": "a stream of open_bytes",
    "data_pipeline/sources/python_docs.py": CHECKED,
    "data_pipeline/store/staging.py": OWN,
    "data_pipeline/store/store.py": VERIFIED,
    "data_pipeline/tokenizer/byte_level_bpe.py": "read_bytes read it before",
    "launch/tpu/archive.py": SYSTEM,
    "launch/tpu/agent/devices.py": SYSTEM,
    "launch/tpu/agent/install.py": HOST,
    "launch/tpu/agent/logs.py": HOST,
    "launch/gke/manifest.py": OWN,
    "launch/tpu/backend.py": SYSTEM,
    "launch/bundle.py": "git lists it, and is_file was asked about it",
}
# What libraries raise for damaged files: only `reader_errors.py` catches these by name.
LIBRARY_ERRORS = {
    "zlib.error", "zipfile.BadZipFile", "lzma.LZMAError", "struct.error", "EOFError",
    "RecursionError", "SafetensorError", "safetensors.SafetensorError", "pyarrow.ArrowException",
    "pa.ArrowException", "ParseError", "json.JSONDecodeError", "tokenize.TokenError",
}  # fmt: skip
CATCHES = {
    "bert_jax/publish/export.py": "while it writes",
    "bert_jax/storage/json_record.py": "tells one of JSON_ERRORS from the others",
    "data_pipeline/text/wikitext.py": "of a parser of text, not of a file",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def writes(call: ast.Call) -> bool:
    """Whether a call opens a file for writing alone."""
    modes = [*call.args[:2], *(k.value for k in call.keywords if k.arg == "mode")]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    return any(isinstance(text, str) and set(text) <= set("wabxt+") for text in texts if text)


def reads_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if not any(name == end or name.endswith(f".{end}") for end in READS):
            continue
        if name in OURS or name.endswith(NO_FILES) or writes(node):
            continue
        yield f"line {node.lineno}: {name}"


@for_every(FILES)
def test_a_file_is_read_through_storage(path: Path) -> None:
    name = name_of(path)
    if not name.startswith(STORAGE) and name not in ALLOWED:
        assert [*reads_in(path)] == []


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_needed(name: str) -> None:
    assert [*reads_in(ROOT / name)], f"{name} reads no file in another way; remove its line"


def caught_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            for kind in map(ast.unparse, kinds):
                if kind in LIBRARY_ERRORS:
                    yield f"line {node.lineno}: {kind}"


@for_every(FILES)
def test_the_errors_of_a_reader_are_one_tuple(path: Path) -> None:
    if name_of(path) not in CATCHES:
        assert [*caught_in(path)] == []


@pytest.mark.parametrize("name", CATCHES)
def test_what_may_be_caught_is_caught(name: str) -> None:
    assert [*caught_in(ROOT / name)], f"{name} catches none of these; remove its line"
