"""The README and docs/ against the program: what they name exists, what they command runs."""

import ast
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from absl import flags

from bert_jax import cli
from bert_jax.config.files import load
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.config.shipped import shipped

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
# In the order they are run, in one folder: docs/data.md builds other stores in place of README's.
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md"), key=lambda page: (page.stem == "data", page)),
]
# What stands in a command, and what the test puts there. The folder holds wiki, books and text.
PATHS = {"/data/": "./"}
SMALLEST = (
    "--config.model.hidden_size=32 --config.model.num_hidden_layers=2 "
    "--config.model.num_attention_heads=2 --config.model.intermediate_size=64 "
    "--config.phases[0].steps=4 --config.phases[0].batch_size=8 --config.log_every_steps=2 "
    "--config.checkpoint.every_steps=2 --config.evaluation.batches=1 "
    "--config.compute.unroll_layers=1"
)
COMPILED = (
    "--phase=0 --config.model.hidden_size=128 --config.model.num_hidden_layers=1 "
    "--config.model.num_attention_heads=2 --config.model.intermediate_size=128 "
    "--config.model.vocab_size=128"
)
# What the test adds to a command: the smallest model, four steps.
SHORTER = {
    "bert-jax pretrain --time_budget=60m": (
        f"{SMALLEST} --config.optimizer.warmup_steps=1 --time_budget=90s"
    ),
    "bert-jax pretrain": SMALLEST,
    "bert-jax launch local run": SMALLEST,
    "bert-jax compile --config=large --topology=v5e-64 --sweep": f"{COMPILED} --sweep_minutes=0.1",
    "bert-jax compile": COMPILED,
    "python benchmarks/": "--help",
}
# Not run here, and why. Any other program that a page names is an error.
ELSEWHERE = {
    "make": ".ci/run runs the targets, test_demo.py the demo on a text of one's own",
    "pip": "needs a package index; `make` in .ci/run installs",
    "export": "names what pip would have installed",
    "wget": "needs the network",
    "wikiextractor": "a program of somebody else",
}
# Of wikiextractor; of pip, --no-deps and --target; of tensorboard.
FOREIGN_FLAGS = {"json", "no", "target", "logdir"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[tuple[str, str]]:
        """(command, output shown for it) of a bash or console block, long lines joined."""
        joined = self.text.replace("\\\n", "")
        if self.language == "bash":
            lines = joined.splitlines()
            return [(line, "") for line in lines if line.strip() and not line.startswith("#")]
        parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]
        return [(part.partition("\n")[0], part.partition("\n")[2].strip()) for part in parts]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            str(page.relative_to(ROOT)),
            text.count("\n", 0, match.start()) + 1,
            match[1],
            match[2],
        )
        for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [
    (block, command, shown)
    for block in BLOCKS
    if block.language in ("bash", "console")
    for command, shown in block.commands()
]
PROSE = {
    page: re.sub(
        r"^```console\n.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for page in PAGES
}


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def test_every_block_says_its_language() -> None:
    for page in PAGES:
        fences = page.read_text("utf-8").count("\n```")
        assert fences == 2 * len(blocks_of(page)), f"{page}: a fence without a language"
    assert {block.language for block in BLOCKS} <= {"bash", "console", "python", "text"}


@pytest.mark.parametrize(
    ("block", "command"),
    [(block, command) for block, command, _ in COMMANDS],
    ids=lambda value: value.place if isinstance(value, Block) else "",
)
def test_every_command_is_known(block: Block, command: str) -> None:
    words = shlex.split(command)
    if words[0] == "bert-jax":
        cli.find(words[1:])
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), f"no such target: {command}"
    elif words[0] == "python":
        assert (ROOT / words[1]).exists(), f"no such file: {command}"
    else:
        assert words[0] in ELSEWHERE, f"{block.place} has a command that no test knows: {command}"


def test_every_extra_exists() -> None:
    (extras,) = (
        {key.value for key in node.value.keys}
        for node in ast.parse((ROOT / "setup.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "EXTRAS"
    )
    named = set(re.findall(r"[`'.]\[(\w+)\][`']", PROSE[ROOT / "README.md"]))
    assert named == extras


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path) if path else page
        assert other.exists(), f"{page}: {target} is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page}: {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_named_file_exists(page: Path) -> None:
    folders = "bert_jax|benchmarks|configs|data_pipeline|docs|launch|requirements|tests"
    for name in re.findall(rf"(?<![\w/.])(?:{folders})/[\w./]*\w", PROSE[page]):
        assert (ROOT / name).exists(), f"{page} names {name}, which is not there"


def known_flags() -> set[str]:
    """Flags of every verb, keys of the configs, and what the benchmarks parse."""
    known = {"help", *FOREIGN_FLAGS}
    for verb in cli.COMMANDS.values():
        values = flags.FlagValues()
        verb.define(values, [])
        known |= set(values)
    for script in (ROOT / "benchmarks").glob("*.py"):
        known |= set(re.findall(r'add_argument\("--([\w-]+)"', script.read_text("utf-8")))
    return known | {f"config.{key}" for key in flatten(to_dict(load("base")))}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_flag_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--([a-z][\w.\[\]]*)", PROSE[page]))
    assert named <= known_flags(), f"{page} names flags that are not there"


def test_every_shipped_config_is_described() -> None:
    page = PROSE[ROOT / "docs/configs.md"]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(shipped())


def write_text(folder: Path) -> None:
    """Random words in the formats of WikiExtractor, of books and of one sentence a line."""
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioubdklmnrst", k=draw.randint(2, 8))) for _ in range(500)]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(6, 20))).capitalize() + "."

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(6))

    for name in ("wiki", "books", "text"):
        (folder / name).mkdir()
    for number in range(2):
        articles = (
            f'<doc id="{number}{i}" url="https://example.org/{i}" title="Title {i}">\nTitle {i}\n\n'
            f"{paragraph()}\n{paragraph()}\n</doc>\n"
            for i in range(20)
        )
        (folder / f"wiki/wiki_0{number}").write_text("".join(articles))
        chapters = (f"## Chapter {i}\n\n{paragraph()}\n\n{paragraph()}\n\n" for i in range(20))
        (folder / f"books/Book {number}.md").write_text("".join(chapters))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = list(dict.fromkeys([*special, *"abcdefghijklmnopqrstuvwxyz.,", *words]))
    entries += [f"[unused{i}]" for i in range(30522 - len(entries))]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")


def take_real_text(folder: Path, request: pytest.FixtureRequest) -> None:
    """A few WikiExtractor files and books, and the released vocabulary."""
    for name, fixture in (("wiki", "real_wiki_files"), ("books", "real_books")):
        files = request.getfixturevalue(fixture)
        (folder / name).symlink_to(os.path.commonpath([file.parent for file in files]))
    vocabulary = request.getfixturevalue("real_data") / "vocab/bert-base-uncased-vocab.txt"
    shutil.copy(vocabulary, folder / "vocab.txt")
    (folder / "text").mkdir()


def prepare(folder: Path, request: pytest.FixtureRequest) -> None:
    if "BERT_JAX_REAL_DATA" in os.environ:
        take_real_text(folder, request)
    else:
        write_text(folder)
    shutil.copy(folder / "vocab.txt", folder / "bert-base-uncased-vocab.txt")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    lines = [f"This is line {i} of a file.\n" + "\n" * (i % 5 == 4) for i in range(100)]
    (folder / "text/lines.txt").write_text("".join(lines))
    (folder / "rows.jsonl").write_text('{"text": "This is a text of one row."}\n')


def shorten(text: str) -> str:
    for shown, here in PATHS.items():
        text = text.replace(shown, here)
    for start, more in SHORTER.items():
        if text.startswith(start):
            return f"{text} {more}"
    return text


def has_libtpu() -> bool:
    return "BERT_JAX_LIBTPU" in os.environ or importlib.util.find_spec("libtpu") is not None


class Runner:
    """Runs what the pages show, one after another in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        cache = str(folder / "cache")
        self._env = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}
        self._env |= {"BERT_JAX_CACHE": cache, "JAX_PLATFORMS": "cpu"}

    def command(self, block: Block, command: str, shown: str) -> None:
        command = shorten(command)
        if command.split()[0] in ELSEWHERE:
            return
        wrong = shown.startswith(("error:", "usage:"))
        if command.startswith("bert-jax compile") and not wrong and not has_libtpu():
            return  # `make slow` has it
        if "data build" in command:
            shutil.rmtree(self.folder / "store", ignore_errors=True)  # of an earlier page
        done = self._run(["bash", "-c", command])
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == wrong, f"{block.place}: {command}\n{said}"
        assert shown in said, f"{block.place}: {command}\nsays\n{said}"

    def python(self, block: Block) -> None:
        if "from transformers" in block.text and importlib.util.find_spec("transformers") is None:
            return  # the [torch] extra, with which .ci/run runs this test
        if "build_store(" in block.text:
            shutil.rmtree(self.folder / "store", ignore_errors=True)
        # A page that shows a config calls the file so.
        script = self.folder / ("mine.py" if "def get_config" in block.text else "block.py")
        script.write_text(shorten(block.text))
        done = self._run([sys.executable, str(script)])
        assert done.returncode == 0, f"{block.place}\n{done.stdout}{done.stderr}"

    def _run(self, words: list[str]) -> subprocess.CompletedProcess:
        return subprocess.run(
            words, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=600
        )


@pytest.mark.slow
def test_every_command_and_snippet_runs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    prepare(tmp_path, request)
    runner = Runner(tmp_path)
    for block in BLOCKS:
        if block.language == "python":
            runner.python(block)
        elif block.language != "text":
            for command, shown in block.commands():
                runner.command(block, command, shown)
    check_metrics(tmp_path / "run/metrics.jsonl")


def check_metrics(path: Path) -> None:
    """docs/training.md describes every scalar that a run writes, and no other."""
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    measured = [record for record in records if record["kind"] in ("train", "eval")]
    written = {key for record in measured for key in record} - {"kind", "step", "phase", "time"}
    of_hosts = {key for key in written if key.startswith("hosts/")}
    assert of_hosts <= set(re.findall(r"`(hosts/\w+)`", PROSE[ROOT / "docs/training.md"]))
    written -= of_hosts
    written = {re.sub(r"^(\w+)/\w+/", r"\1/SOURCE/", key) for key in written}
    table = PROSE[ROOT / "docs/training.md"].partition("| scalar |")[2].partition("\n\n")[0]
    described = set(
        re.findall(r"`([\w/]+)`", "".join(re.findall(r"^\|.*?\|", table, re.MULTILINE)))
    )
    sometimes = {"flops_utilization", "skipped_steps"}  # a CPU's peak is not known; none is skipped
    assert described - sometimes == written - sometimes
