"""Random command lines, configurations and files for test_fuzz.py, each by its number."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from bert_jax import cli
from bert_jax.commands.command import define_flags
from bert_jax.config.config_files import load
from bert_jax.config.serialization import flatten, to_dict

TINY = (
    "--config=tiny", "--config.phases[0].batch_size=8", "--config.phases[0].seq_length=32",
    "--config.phases[0].max_predictions=5", "--config.model.num_hidden_layers=1",
)  # fmt: skip
WORDS = (
    "", "0", "-1", "1", "2", "7", "33", "1e30", "3e9", "3000000000", "1000000000000", "-1e-9",
    "1e-320", "0.5", "1.5", "nan", "inf", "-inf", "true", "None", "abc", "[1]", "{}", "(",
    "books=2", "wiki=1e300", "=", ",", "a" * 3000, "9" * 5000, "naïve 猫", "\udcff",
    "\x1b[31m", "a\nb", "[/]", "0:1", "2:1", "nowhere", "/dev/null", "/proc/self/mem", "../..",
    "gs", "x://y", "--", "-",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "abc", "a" * 3000, "\ud800", "\x00\x1b[31m", "[/]", "0", "gelu", [], {}, [[]],
    [1] * 50, {"a": 1}, [None], ["[MASK]"], {"type": "NFC"}, {"Regex": "("},
)  # fmt: skip
TEXTS = (
    b"", b"null", b"[]", b"{}", b"1", b'"', b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000, b"NaN",
    b'{"a":' * 50_000, b"9" * 5000, b"\x00" * 100,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Places:
    """What the cases are made from; never written to."""

    store: Path
    export: Path  # without SHA256SUMS, so that what is changed in it is read
    run: Path  # the folder of a run, without a checkpoint
    vocabulary: Path  # a tokenizer.json

    def words(self) -> tuple[str, ...]:
        return (*WORDS, *map(str, (self.store, self.export, self.run, self.vocabulary)))


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    words: list[str]


def case(number: int, places: Places, folder: Path, *, alone: bool) -> Case:
    """One of the cases, always the same for a number.

    Args:
        folder: an empty one for its files.
        alone: whether it has a process of its own, and may take seconds and set up devices.
    """
    rng = random.Random(f"bert-jax fuzz {number}")
    kind = list(KINDS)[number % len(KINDS)]
    return Case(kind, KINDS[kind](rng, places, folder, alone))


def _config(rng: random.Random, places: Places, folder: Path, alone: bool) -> list[str]:
    """Some settings of a configuration, for a verb that trains or one that looks."""
    keys = list(flatten(to_dict(load("tiny"))))
    changed = [f"--config.{rng.choice(keys)}={rng.choice(WORDS)}" for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.5:
        return ["pretrain", *TINY, f"--workdir={folder}/run", *changed,
                f"--config.data.store={folder}/nowhere"]  # fmt: skip
    store = [f"--store={places.store}", "--examples=1"]
    return ["data", "inspect", *TINY, *store, *changed]


def _exported_config(rng: random.Random, places: Places, folder: Path, alone: bool) -> list[str]:
    return _fill(rng, places, folder, alone, "config.json")


def _exported_tokenizer(rng: random.Random, places: Places, folder: Path, alone: bool) -> list[str]:
    return _fill(rng, places, folder, alone, "tokenizer.json")


def _fill(rng: random.Random, places: Places, folder: Path, alone: bool, name: str) -> list[str]:
    shutil.copytree(places.export, folder, dirs_exist_ok=True)
    _damage(rng, folder / name)
    # Filling a mask takes seconds, for a compiler; loading the folder is the same without one.
    return ["fill", f"--model={folder}", "the [MASK] fox" if alone else "the fox"]


def _run_config(rng: random.Random, places: Places, folder: Path, alone: bool) -> list[str]:
    shutil.copytree(places.run, folder, dirs_exist_ok=True)
    _damage(rng, folder / rng.choice(["config.json", "config.json", "metrics.jsonl"]))
    verb = rng.choice([["status"], ["status", "--json"], ["data", "batch", "--step=0"]])
    return [*verb, f"--workdir={folder}"]


def _extracted(rng: random.Random, places: Places, folder: Path, alone: bool) -> list[str]:
    """Lines as WikiExtractor writes them, some of them damaged."""
    lines = []
    for number in range(6):
        document = {"id": f"{number}", "url": "u", "title": f"T{number}",
                    "text": f"T{number}\n\nw1 w2 w3. w4 w5 w6.\n"}  # fmt: skip
        line = json.dumps(document).encode()
        if rng.random() < 0.4:
            line = damaged(rng, document, line)
        lines.append(line.replace(b"\n", b" "))
    (folder / "wiki_00").write_bytes(b"\n".join(lines) + b"\n")
    return ["data", "build", f"--source=wikiextractor:{folder}/wiki_00", "--workers=1",
            f"--tokenizer={places.vocabulary}", f"--out={folder}/store"]  # fmt: skip


def _words(rng: random.Random, places: Places, folder: Path, alone: bool) -> list[str]:
    """A verb with some of its flags, their values at random, and words that nobody asked for."""
    verb = rng.choice([verb for verb in cli.COMMANDS if alone or verb != "demo"])
    values = flags.FlagValues()
    define_flags(cli.COMMANDS[verb], values, [])
    # One waits for other processes; devices are set up once in a process, as `demo` does.
    left_out = {"coordinator", "grace"} | (set() if alone else {"cpu_devices"})
    names = sorted(set(values) - left_out)
    said = [
        f"--{name}={rng.choice(places.words())}"
        for name in rng.sample(names, rng.randint(0, min(4, len(names))))
    ]
    if rng.random() < 0.3:
        said.insert(rng.randint(0, len(said)), rng.choice(WORDS))
    # What would take minutes where everything else happens to be right.
    last = {"demo": ["--data=/nowhere", f"--workdir={folder}/demo"], "compile": ["--topology=v9-1"]}
    return [*verb.split(), *said, *last.get(verb, [])]


def _damage(rng: random.Random, file: Path) -> None:
    data = file.read_bytes()
    try:
        value = json.loads(data)
    except ValueError:  # several lines of JSON
        value = None
    file.write_bytes(damaged(rng, value, data))


def damaged(rng: random.Random, value: Any, data: bytes) -> bytes:
    """JSON with one value changed or left out, or with bytes changed."""
    way = rng.random()
    if way < 0.7 and isinstance(value, dict):
        copied = json.loads(json.dumps(value))
        _change(rng, copied)
        return json.dumps(copied, ensure_ascii=rng.random() < 0.9).encode(errors="surrogatepass")
    if way < 0.8 or not data:
        return rng.choice(TEXTS)
    place = rng.randrange(len(data))
    if way < 0.9:
        return data[:place]
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _change(rng: random.Random, value: Any) -> None:
    """Walks down to a value, and puts another there or takes it away."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        below = value[key]
        if isinstance(below, dict | list) and below and rng.random() < 0.8:
            value = below
            continue
        if rng.random() < 0.2:
            del value[key]
        else:
            value[key] = rng.choice(VALUES)
        return


KINDS: dict[str, Callable[[random.Random, Places, Path, bool], list[str]]] = {
    "config values": _config,
    "config.json of an export": _exported_config,
    "config.json of a run": _run_config,
    "tokenizer.json": _exported_tokenizer,
    "WikiExtractor lines": _extracted,
    "command lines": _words,
}
