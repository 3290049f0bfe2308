"""Every place that writes is known: to what is ours, or to a path of the user through the gate.

A new one fails here. A path that a user names is written by `outputs.write_output`, or checked by
`check_output` before anything in it changes; then it belongs into this list, with the reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = [path for name in ("bert_jax", "data_pipeline", "launch", "configs")
           for path in sorted((ROOT / name).rglob("*.py"))]  # fmt: skip
# Functions and methods that write, create, rename or remove, whatever they are called on.
WRITERS = {
    "write_bytes", "write_text", "publish", "move_folder", "mkdir", "makedirs", "touch", "unlink",
    "removedirs", "rmdir", "rmtree", "rename", "renames", "symlink_to", "hardlink_to",
    "symlink", "copyfile", "copytree", "copy2", "copyfileobj", "move", "mv_file", "savetxt",
    "savez", "savez_compressed", "savefig", "save_file", "tofile", "write_table", "ParquetWriter",
    "extract", "extractall", "truncate", "mkdtemp", "mkstemp", "pipe_file", "put_file",
    "TFRecordWriter", "to_csv", "to_parquet",
}  # fmt: skip
BY_NAME = {"put"}  # as a method, it is of queues and key-value stores
OF_MODULES = {
    ("os", "replace"),
    ("os", "remove"),
    ("os", "link"),
    ("shutil", "copy"),
    ("np", "save"),
}
MODES = set("wax+")
CREATING = {"O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND"}


def is_write(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(name) if name in WRITERS | BY_NAME:
            return True
        case ast.Attribute(ast.Name(module), name) if (module, name) in OF_MODULES:
            return True
        case ast.Attribute(ast.Name("os"), "open"):
            names = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
            return bool(names & CREATING) or "O_RDONLY" not in names
        case ast.Name("open") | ast.Attribute(_, "open" | "fdopen"):
            return bool(MODES & set(mode_of(call)))
        case ast.Attribute(ast.Name("dataclasses" | "copy"), _):
            return False
        case ast.Attribute(_, "replace"):  # of a path; of a text, it takes two
            return len(call.args) == 1 and not call.keywords
        case ast.Attribute(_, "copy"):  # the same
            return len(call.args) == 1
        case ast.Attribute(_, name):
            return name in WRITERS
    return False


def mode_of(call: ast.Call) -> str:
    """The mode of an `open`, the last argument in its place that looks like one."""
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    texts = [value.value for value in given
             if isinstance(value, ast.Constant) and isinstance(value.value, str)]  # fmt: skip
    return next((text for text in reversed(texts) if set(text) <= set("rwaxbt+:gz")), "")


def writes(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """The names of the functions that write, of a method CLASS.METHOD."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call) and is_write(node):
            yield inside
        yield from writes(node, name)


GATE = "the gate, or below it"
CHECKED = "a path of the user, after `check_output`"
OWN = "a part of a folder that passed the gate, or one with our mark"
TEMPORARY = "a temporary folder, or a name beside the output that only we use"
CACHE = "a cache, in a folder of its own"
MEMORY = "bytes in memory"
PROCESS = "a process's own streams or locks"
READING = "opened for reading, with flags that are variables"
HOST = "the machine of a job, which is the job's own"

# file -> why it may write, and the functions that do
KNOWN: dict[str, tuple[str, set[str]]] = {
    "bert_jax/ablation/record.py": (OWN, {"_write", "note_command"}),
    "bert_jax/ablation/report_files.py": (OWN, {"_write_csv", "write"}),
    "bert_jax/ablation/run.py": (OWN, {"_locked"}),
    "bert_jax/api/data.py": (CHECKED, {"_written"}),
    "bert_jax/api/embed.py": (CHECKED, {"_claim", "_join", "embed"}),
    "bert_jax/api/vector_files.py": (
        TEMPORARY,
        {"_join_npy", "_join_parquet", "_npy_bytes", "_parquet_bytes"},
    ),
    "bert_jax/checkpoint/orbax_io.py": (OWN, {"remove", "replace_meta", "tidy", "write"}),
    "bert_jax/checkpoint/restore.py": (OWN, {"Restorer._quarantine"}),
    "bert_jax/commands/launch_fits.py": (CACHE, {"_probe"}),
    "bert_jax/publish/export.py": (
        CHECKED,
        {"_publish", "_remove_leftovers", "_write", "export"},
    ),
    "bert_jax/publish/weight_writer.py": (TEMPORARY, {"write_files", "write_weights"}),
    "bert_jax/publish/push.py": (TEMPORARY, {"_link"}),
    "bert_jax/convert/safetensors_file.py": (TEMPORARY, {"write_tensors"}),
    "bert_jax/convert/model_folders.py": (TEMPORARY, {"_unpack", "local_folder"}),
    "bert_jax/demo/pipeline.py": (CHECKED, {"_claim"}),
    "bert_jax/finetune/results.py": (OWN, {"write_results"}),
    "bert_jax/metrics/jsonl.py": (OWN, {"_File._open", "_Parts._upload"}),
    "bert_jax/reporting/plots.py": (MEMORY, {"_svg"}),
    "bert_jax/runtime/streams.py": (PROCESS, {"_open_closed", "own_stdout"}),
    "bert_jax/training/profiling.py": (OWN, {"_copy"}),
    "bert_jax/training/speed.py": (OWN, {"_save"}),
    "bert_jax/training/shared_arrays.py": (OWN, {"_computed"}),
    "bert_jax/workdir/description.py": (OWN, {"_write"}),
    "bert_jax/workdir/lock.py": (OWN, {"lock"}),
    "data_pipeline/batch.py": (MEMORY, {"prefetch.produce"}),
    "data_pipeline/store_build/beam.py": (OWN, {"_build", "_read", "_scratch"}),
    "data_pipeline/store_build/build.py": (
        CHECKED,
        {"_build_with_beam", "_merge", "_ready", "_reuse", "build_shards"},
    ),
    "data_pipeline/store_build/digests.py": (OWN, {"FileDigests.save"}),
    "data_pipeline/store_build/merge.py": (OWN, {"merge"}),
    "data_pipeline/store_build/near_duplicates.py": (
        OWN,
        {"_gather", "_write_hashes", "first_of_similar"},
    ),
    "data_pipeline/store_build/shard.py": (OWN, {"build_shard"}),
    "data_pipeline/store_build/shard_files.py": (
        OWN,
        {"ArrayFile.__init__", "_copy", "_send", "fetch", "publish"},
    ),
    "data_pipeline/store_build/shards.py": (
        OWN,
        {"ShardFolders.claim", "ShardFolders.record", "_remove_left_parts"},
    ),
    "data_pipeline/store_build/worker_package.py": (TEMPORARY, {"write_package"}),
    "data_pipeline/store_build/working_folder.py": (OWN, {"claim", "remove"}),
    "data_pipeline/export/example_files.py": (CHECKED, {"export_rows"}),
    "data_pipeline/export/parquet.py": (MEMORY, {"encode"}),
    "data_pipeline/plan/column_files.py": (
        CACHE,
        {"_Column.__init__", "_publish", "keep", "remove"},
    ),
    "data_pipeline/plan/plan.py": (MEMORY, {"_put_rows", "plan_epoch"}),
    "data_pipeline/sources/documents.py": (TEMPORARY, {"write"}),
    "bert_jax/storage/atomic.py": (GATE, {"publish", "write_bytes", "write_text"}),
    "bert_jax/storage/digested_files.py": (
        CACHE,
        {"DigestedFiles._make_room", "DigestedFiles.get", "DigestedFiles.put", "own_folder"},
    ),
    "bert_jax/storage/local_copy.py": (CACHE, {"_copy", "local_folder"}),
    "bert_jax/storage/locks.py": (PROCESS, {"FileLock.acquire"}),
    "bert_jax/storage/outputs.py": (GATE, {"write_output"}),
    "bert_jax/storage/regular_file.py": (READING, {"open_regular.opener"}),
    "bert_jax/storage/remote.py": (GATE, {"move_folder", "move_folder.move", "put"}),
    "data_pipeline/store/staging.py": (CACHE, {"_copy.fetch", "_locked", "_missing", "stage"}),
    "data_pipeline/store/writer.py": (OWN, {"ArrayWriter.__init__", "write_manifest"}),
    "launch/tpu/agent/__main__.py": (HOST, {"main"}),
    "launch/tpu/agent/devices.py": (HOST, {"free_devices"}),
    "launch/tpu/agent/host.py": (HOST, {"Host.say"}),
    "launch/tpu/agent/install.py": (
        HOST,
        {"Installer.environment", "Installer.uv", "_unpack_one", "unpack_bundle"},
    ),
    "launch/tpu/agent/logs.py": (HOST, {"LogFile.__init__", "LogFile.open"}),
    "launch/sky/backend.py": (OWN, {"Sky.delete", "Sky.stop"}),
    "launch/sky/node.py": (OWN, {"_begin", "_put"}),
    "launch/slurm/backend.py": (OWN, {"Slurm._check_options", "Slurm.delete", "Slurm.stop"}),
    "launch/slurm/requeue.py": (OWN, {"State.write", "main"}),
    "launch/slurm/task.py": (OWN, {"main"}),
    "launch/bundle.py": (MEMORY, {"_tar"}),
    "launch/job.py": (CHECKED, {"Rendering.write"}),
    "launch/preflight.py": (OWN, {"folder_check.probe"}),
}


def found() -> dict[str, set[str]]:
    listed = {}
    for path in MODULES:
        names = set(writes(ast.parse(path.read_text(encoding="utf-8"))))
        if names:
            listed[str(path.relative_to(ROOT))] = names
    return listed


def test_every_place_that_writes_is_known() -> None:
    known = {file: names for file, (_, names) in KNOWN.items()}
    here = found()
    new = {file: names - known.get(file, set()) for file, names in here.items()}
    gone = {file: names - here.get(file, set()) for file, names in known.items()}
    new, gone = ({f: n for f, n in both.items() if n} for both in (new, gone))
    assert not new, f"write a path of the user through storage/outputs.py: {new}"
    assert not gone, f"no longer there; take it from the list: {gone}"


@pytest.mark.parametrize(
    "line",
    [
        "atomic.write_bytes(Path(file), data)",  # what `predict` once did
        "Path(out).write_text(text)",
        "open(out, 'w')",
        "out.open('wb')",
        "open(out, mode='a')",
        "put(out, data)",
        "os.replace(a, out)",
        "made.replace(out)",
        "path.copy(out)",
        "np.save(out, x)",
        "x.tofile(out)",
        "shutil.copyfile(a, out)",
        "os.open(out, os.O_CREAT | os.O_WRONLY)",
        "parquet.write_table(table, out)",
        "figure.savefig(out)",
    ],
)
def test_a_place_that_writes_is_found(line: str) -> None:
    assert list(writes(ast.parse(f"def save(out):\n    {line}"))) == ["save"]
    reading = ["open(a)", "open(a, 'rb')", "a.replace('b', 'c')", "dataclasses.replace(a, b=1)",
               "queue.put(a)", "a.copy()", "a.open()", "os.open(a, os.O_RDONLY)"]  # fmt: skip
    assert not [text for text in reading if list(writes(ast.parse(text)))]
