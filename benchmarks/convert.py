"""Time and memory of `convert import`, `export` and `verify` with a BERT-base (440 MB).

    python benchmarks/convert.py --vocabulary=vocab.txt

Needs the extra [torch]. The model has random weights and the vocabulary of 30,522 entries. Each
command runs in a process of its own, its start included; the files are in the page cache.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import harness

COMMANDS = (
    ("import", "--from=model", "--out=imported"),
    ("export", "--workdir=run", "--out=exported"),
    ("verify", "model", "imported"),
)
# Linux gives a process that is started the peak of the one that starts it, `ru_maxrss`; the peak of
# its own memory is in its status.
_RUN = """
import atexit, sys
from pathlib import Path

status = Path(sys.argv.pop(1))
atexit.register(lambda: status.write_text(Path("/proc/self/status").read_text()))
from bert_jax.cli import main

sys.exit(main(sys.argv[1:]))
"""


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--vocabulary", type=Path, required=True, help="vocab.txt of a BERT-base")
    options = parser.parse_args()
    print(f"{harness.machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", options.vocabulary)
        make_run(Path(folder))
        print("| command | seconds | peak memory, MiB |\n|---|---:|---:|")
        for words in COMMANDS:
            seconds, peak = measure(["convert", *words], Path(folder))
            harness.record(command=words[0], seconds=seconds, peak_mib=peak)
            print(f"| `convert {words[0]}` | {seconds:.1f} | {peak:,.0f} |", flush=True)


def make_model(folder: Path, vocabulary: Path) -> None:
    """Writes a `BertForPreTraining` of base size."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.BertForPreTraining(transformers.BertConfig()).save_pretrained(folder)
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(folder)


def make_run(folder: Path) -> None:
    """Trains the model for one step in the workdir `run`."""
    (folder / "text").mkdir()
    lines = [f"The page number {n} has one sentence." for n in range(200)]
    text = "\n".join(line if n % 10 else f"\n{line}" for n, line in enumerate(lines))
    (folder / "text/lines.txt").write_text(text)
    for words in (
        ("convert", "import", "--from=model", "--out=start"),
        ("data", "build", "--source=lines:text", "--tokenizer=start/tokenizer.json", "--out=store"),
        (
            *("pretrain", "--config=base", "--config.data.store=store", "--workdir=run"),
            *("--config.phases[0].steps=1", "--config.phases[0].batch_size=2"),
            *("--config.evaluation.batches=1", "--cpu_devices=1"),
        ),
    ):
        measure(words, folder)


def measure(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """Returns the seconds of a command and the peak memory of its process, in MiB."""
    started, status = time.perf_counter(), folder / "status"
    done = subprocess.run(
        [sys.executable, "-c", _RUN, status.name, *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    if done.returncode:
        output = done.stdout + done.stderr
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{output}")
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())
    return seconds, int(peak) / 1024


if __name__ == "__main__":
    main()
