"""What releases of the hub's client ask for, compared with a log: `hub_server` and `hub_uploads`
answer these requests. A release that asks for something else is seen here first.

`hub_requests.txt` is written with BERT_JAX_WRITE_HUB_REQUESTS=1.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub, serve
from hub_uploads import TOKEN, serve_uploads
from row_files import write_parquet

from bert_jax.convert import checksums

ROOT = Path(__file__).resolve().parents[2]
LOG = Path(__file__).with_name("hub_requests.txt")
WRITE = bool(os.environ.get("BERT_JAX_WRITE_HUB_REQUESTS"))
OLD = Path(os.environ.get("BERT_JAX_HUB_OLD", ROOT / ".venv/hub_old"))  # `make .venv/hub_old`
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 400}

pytestmark = pytest.mark.processes

DOWNLOAD = """
from bert_jax.storage import hub
name = hub.parse_model("hf:org/bert")
hub.files_of(name)
hub.fetch(name, ["config.json"])
hub.fetch(name, ["*.safetensors"])
"""
DATASET = """
from bert_jax.data_pipeline.sources import hub_dataset
hub_dataset.download("hf:org/text")
"""
PUSH = """
import sys
from bert_jax.publish.push import Target, push
push(sys.argv[1], Target("me/my-bert", branch="step-4"))
push(sys.argv[1], Target("me/my-bert", branch="step-4"))
"""


def run(code: str, tmp_path: Path, endpoint: str, packages: Path | None) -> None:
    first = [str(packages)] if packages else []
    paths = [*first, str(ROOT), str(ROOT / "tests/support")]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths), "HF_ENDPOINT": endpoint, "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "JAX_PLATFORMS": "cpu",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", code, str(tmp_path / "export")]
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def without_ids(asked: list[str]) -> list[str]:
    """The requests in any order, as files are sent at once; without what no two runs share."""
    plain = (re.sub(r"\b[0-9a-f]{40,64}\b", "ID", one) for one in asked)
    return sorted(re.sub(r"\?X-Amz-Signature=\w+", "", one).strip() for one in plain)


def export_of(folder: Path) -> None:
    """A folder with what a push looks at: checksums, and weights that bert-jax wrote."""
    from safetensors.numpy import save

    files = {
        "config.json": b"{}",
        "README.md": b"# A model\n",
        "model.safetensors": save({}, metadata={"format": "pt", "producer": "bert-jax"}),
    }
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / checksums.SUMS).write_text(checksums.render(folder, files))


def asked_by(tmp_path: Path, packages: Path | None) -> dict[str, list[str]]:
    write_parquet(tmp_path / "rows.parquet", [{"text": "a ship."}])
    copied = {"default/train/0000.parquet": (tmp_path / "rows.parquet").read_bytes()}
    datasets = {"org/text": {"main": {"README.md": b"# Text"}, "refs/convert/parquet": copied}}
    found = {}
    for what, code in (("a model", DOWNLOAD), ("a dataset", DATASET)):
        with serve(Hub({"org/bert": {"main": FILES}}, datasets)) as server:
            run(code, tmp_path, server.endpoint, packages)
            found[what] = without_ids(server.asked)
    export_of(tmp_path / "export")
    with serve_uploads() as uploads:
        run(PUSH, tmp_path, uploads.endpoint, packages)
        found["a push, twice"] = without_ids(uploads.asked)
    return found


def logged() -> dict[str, list[str]]:
    """Heading -> lines."""
    parts = LOG.read_text(encoding="utf-8").split("# ")[1:] if LOG.exists() else []
    lines = (part.strip().splitlines() for part in parts)
    return {heading: requests for heading, *requests in lines}


def check(release: str, found: dict[str, list[str]]) -> None:
    headed = {f"huggingface_hub {release}: {what}": asked for what, asked in found.items()}
    if WRITE:
        parts = sorted((logged() | headed).items())
        text = "\n\n".join("\n".join([f"# {heading}", *asked]) for heading, asked in parts)
        LOG.write_text(f"{text}\n", encoding="utf-8")
    known = logged()
    assert headed == {heading: known.get(heading) for heading in headed}


def test_the_installed_release_asks_what_is_logged(tmp_path: Path) -> None:
    """A release that is not in the log asks what the newest in it does."""
    release = ".".join(importlib.metadata.version("huggingface_hub").split(".")[:2])
    in_log = {heading.split()[1].rstrip(":") for heading in logged()}
    if release not in in_log and not WRITE:
        release = max(in_log, key=lambda one: [int(part) for part in one.split(".")])
    check(release, asked_by(tmp_path, None))


@pytest.mark.nightly
@pytest.mark.skipif(not OLD.is_dir(), reason="needs `make .venv/hub_old`, or BERT_JAX_HUB_OLD")
def test_the_oldest_release_asks_what_is_logged(tmp_path: Path) -> None:
    (record,) = OLD.glob("huggingface_hub-*.dist-info")
    assert record.name.startswith("huggingface_hub-0.34.")
    check("0.34", asked_by(tmp_path, OLD))
