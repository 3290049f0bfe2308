"""Memory of a build: huge documents and lines, and stores of many documents."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import prepared_dataset
import pyarrow as pa
import pyarrow.parquet
import pytest
from nightly import others_nightly
from row_files import Rows, write_arrow, write_csv, write_jsonl, write_parquet

from bert_jax import cli
from bert_jax.data_pipeline.sources import reading
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer

ROOT = Path(__file__).resolve().parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])
MOST = 1.5 * 2**30  # bytes
# Not getrusage: its maximum includes the memory of the test that started the process.
COMMAND = """
import re, sys
from pathlib import Path
from bert_jax import cli
code = cli.main(sys.argv[1:])
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
sys.exit(code)
"""


def build(tmp_path: Path, *flags: str) -> tuple[int, int, str]:
    """Returns the exit code, the most bytes of memory and the errors of a build in a process."""
    TOKENIZER.save(tmp_path / "tokenizer.json")
    words = [f"--tokenizer={tmp_path}/tokenizer.json", f"--out={tmp_path}/store", "--workers=1"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "data", "build", *flags, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, int(done.stdout.splitlines()[-1]), done.stderr


def sentence(number: int) -> str:
    draw = np.random.default_rng(number)
    words = ["".join(draw.choice(list(LETTERS), 5)) for _ in range(15)]
    return " ".join(words).capitalize() + ".\n"


@pytest.mark.slow
@pytest.mark.processes
def test_a_document_of_100_mb(tmp_path: Path) -> None:
    block = "".join(map(sentence, range(1000)))
    (tmp_path / "a.txt").write_text(block * (100_000_000 // len(block) + 1) + "\n" + block[:900])
    near = "--dedup=near"
    code, memory, said = build(tmp_path, f"--source=lines:{tmp_path}/a.txt,lines=1000000", near)
    assert code == 0, said
    manifest = json.loads((tmp_path / "store/manifest.json").read_text())
    assert manifest["sources"][0]["documents"] == 2
    print(f"{memory / 2**20:.0f} MiB")
    assert memory < MOST


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "tfds": lambda path, rows: prepared_dataset.write(path / "1.0.0", {"train": [rows]}),
}


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("kind", WRITERS)
def test_a_row_of_100_mb(kind: str, tmp_path: Path) -> None:
    block = "".join(map(sentence, range(1000)))
    path = tmp_path / f"a.{kind}"
    WRITERS[kind](path, [{"text": block * (100_000_000 // len(block) + 1)}, {"text": block[:900]}])
    code, memory, said = build(tmp_path, f"--source={kind}:{path}", "--dedup=near")
    assert code == 0, said
    manifest = json.loads((tmp_path / "store/manifest.json").read_text())
    assert manifest["sources"][0]["documents"] == 2
    print(f"{kind}: {memory / 2**20:.0f} MiB")
    assert memory < MOST


@pytest.mark.nightly
@pytest.mark.processes
def test_a_row_group_of_500_mb(tmp_path: Path) -> None:
    block = "".join(map(sentence, range(100)))
    rows = [{"text": f"{number} {block}"} for number in range(500_000_000 // len(block))]
    table = pa.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=len(rows))
    code, memory, said = build(tmp_path, f"--source=parquet:{tmp_path}/a.parquet")
    assert code == 0, said
    print(f"{memory / 2**20:.0f} MiB")
    assert memory < MOST


@pytest.mark.slow
@pytest.mark.processes
def test_a_line_of_200_mb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n" + "word " * 40_000_000 + "\n")
    code, memory, said = build(tmp_path, f"--source=lines:{tmp_path}/a.txt")
    assert code == 1
    (line,) = [line for line in said.splitlines() if "error:" in line]
    assert "a line of more than 134,217,728 bytes from byte 5 on" in line
    assert memory < MOST


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("dedup", others_nightly(["exact", "near"], keep=["exact"]))
def test_a_merge_of_two_million_documents(dedup: str) -> None:
    """With a tenth of the tokens of such documents, which a merge reads shard by shard."""
    words = [f"--dedup={dedup}", "--tokens=1e8", "--documents=2e6"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/merge.py", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "2,000,000 documents" in done.stdout
    memory = re.search(r"at most ([\d,]+) MiB", done.stdout)
    assert memory
    assert int(memory[1].replace(",", "")) * 2**20 < MOST


def test_a_sentence_of_5_million_characters_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("one\n\n" + "word " * 1_000_000 + "\n")
    TOKENIZER.save(tmp_path / "tokenizer.json")
    words = [f"--tokenizer={tmp_path}/tokenizer.json", f"--out={tmp_path}/store", "--workers=1"]
    assert cli.main(["data", "build", f"--source=lines:{tmp_path}/a.txt", *words]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "source 'lines': a sentence of 4,999,999 characters, at most 4,194,304 ('word" in line


def test_the_longest_line_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_LONGEST", 6)
    (tmp_path / "a.txt").write_bytes(b"12345\n12345")
    assert list(reading.lines(tmp_path / "a.txt")) == ["12345", "12345"]
