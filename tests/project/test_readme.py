"""The README and docs/ against the program: what they name exists, what they command runs."""

import ast
import contextlib
import csv
import importlib.util
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path

import prepared_dataset
import pytest
import setuptools
import small_dump
from absl import flags
from page_files import write_tasks, write_text
from row_files import write_parquet, write_saved
from typed_commands import TYPED, Typed

from bert_jax import cli
from bert_jax.commands.command import define_flags
from bert_jax.config.ablation import AblationConfig
from bert_jax.config.config_files import load
from bert_jax.config.serialization import flatten, to_dict

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
# In the order in which they are typed, into one shell and one folder: a page before those below it.
DOCS = sorted((ROOT / "docs").rglob("*.md"), key=lambda page: page.with_suffix("").parts)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
PACKAGES = {  # Python that imports them is saved, but not run without them
    "transformers": "the extra [torch], with which .ci/run runs this test",
}
PATHS = {"/data/": "./"}  # in every command and snippet: the folder holds wiki, books and text
# Of wikiextractor, hf and tfds; of pip, --no-deps and --target; of bert-jax without a command; of
# tensorboard; the first words of those of gcloud, kubectl, docker and sbatch.
FOREIGN_FLAGS = {
    "json", "no", "target", "version", "logdir", "location", "workload", "cluster", "node",
    "machine", "tpu", "enable", "num", "max", "server", "filename", "tag", "qos", "member", "role",
    "recursive", "scopes", "command", "worker", "unit", "service", "flagfile", "array", "repo",
    "include", "local", "file_format", "temp_location", "direct_num_workers",
    "direct_running_mode", "region", "links", "sections", "lists", "test", "dependency", "export",
    "signal", "output", "repository",
}  # fmt: skip


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
            match[2],
            textwrap.dedent(match[3]),
        )
        for match in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
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
        fences = re.findall(r"^ *```", page.read_text("utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(blocks_of(page)), f"{page}: a fence without a language"
    assert {block.language for block in BLOCKS} <= {"bash", "console", "python", "text", "yaml"}


@pytest.mark.parametrize(
    ("block", "command"),
    [(block, command) for block, command, _ in COMMANDS],
    ids=lambda value: value.place if isinstance(value, Block) else "",
)
def test_every_command_is_known(block: Block, command: str) -> None:
    words = shlex.split(command)
    bare = (re.split("['\"]", word)[0] for word in shlex.split(command, posix=False))
    unquoted = [word for word in bare if "[" in word]
    assert not unquoted, f"{block.place}: zsh takes [ for a pattern: quote {unquoted[0]}"
    words = list(itertools.dropwhile(re.compile("[A-Z_]+=").match, words))  # variables for it
    if words[0] == "bert-jax":
        assert words[1] in ("--help", "--version") or cli.find(words[1:])
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), f"no such target: {command}"
    elif words[0] == "python":
        assert words[1] == "-c" or (ROOT / words[1]).exists(), f"no such file: {command}"
    elif command != "source .venv/bin/activate":
        assert not typed(command), f"{block.place} has a command that no test knows: {command}"


def test_every_row_of_the_table_is_used() -> None:
    used = {row.start for _, command, _ in COMMANDS if (row := row_of(command))}
    assert used == {row.start for row in TYPED}


def test_every_extra_exists() -> None:
    (extras,) = (
        {key.value for key in node.value.keys}
        for node in ast.parse((ROOT / "setup.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "EXTRAS"
    )
    named = set(re.findall(r"[`'.]\[(\w+)\][`']", PROSE[ROOT / "README.md"]))
    assert named == extras


def test_a_package_index_gets_absolute_links(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    runpy.run_path(str(ROOT / "setup.py"))
    targets = re.findall(r"\]\(([^)\s]+)\)", given["long_description"])
    assert all(target.startswith("https://") for target in targets)
    assert any(target.endswith("/raw/main/docs/images/masks.svg") for target in targets)


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", PROSE[ROOT / "docs/index.md"]))
    assert linked == {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"], ids=name_of)
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
        define_flags(verb, values, [])
        known |= set(values)
    for script in (ROOT / "benchmarks").glob("*.py"):
        known |= set(re.findall(r'add_argument\("--([\w-]+)"', script.read_text("utf-8")))
    keys = {*flatten(to_dict(load("base"))), *flatten(to_dict(AblationConfig()))}
    return known | {f"config.{key}" for key in keys}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_flag_exists(page: Path) -> None:
    prose = PROSE[page]
    if page.stem == "migrating":  # its first columns name flags of other programs
        prose = re.sub(r"^\|[^|]*\|", "|", prose, flags=re.MULTILINE)
    named = set(re.findall(r"(?<![\w-])--([a-z][\w.\[\]]*)", prose))
    assert named <= known_flags(), f"{page} names flags that are not there"


def test_every_key_that_replaces_a_flag_exists() -> None:
    keys = flatten(to_dict(load("base")))
    rows = re.findall(r"^\|[^|]*\|(.*)\|$", PROSE[ROOT / "docs/migrating.md"], re.MULTILINE)
    groups = "|".join({key.partition(".")[0].partition("[")[0] for key in keys if "." in key})
    named = set(re.findall(rf"`((?:{groups})(?:\[0\])?\.[\w.]+)", " ".join(rows)))
    assert len(named) > 30
    assert named <= set(keys), "docs/migrating.md names keys that are not there"


def string_of(node: ast.AST) -> str:
    """A string of a program; … for each value that is put into it."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts)


def test_the_program_prints_every_message_of_troubleshooting() -> None:
    page = PROSE[ROOT / "docs/troubleshooting.md"]
    shown = re.findall(r"`(?:error|warning): ([^`]+)`", page) + re.findall(
        r"ends with `([^`]+)`", page
    )
    files = [p for room in ("bert_jax", "data_pipeline") for p in (ROOT / room).rglob("*.py")]
    printed = {
        string_of(node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    }
    assert len(shown) > 10
    for message in shown:
        parts = [part.strip(" :;,") for part in " ".join(message.split()).split("…")]
        assert any(all(part in text for part in parts) for text in printed), message


def take_real_text(folder: Path, request: pytest.FixtureRequest) -> None:
    """A few WikiExtractor files and books, and the released vocabulary."""
    for name, fixture in (("wiki", "real_wiki_files"), ("books", "real_books")):
        files = request.getfixturevalue(fixture)
        (folder / name).symlink_to(os.path.commonpath([file.parent for file in files]))
    vocabulary = request.getfixturevalue("real_data") / "vocab/bert-base-uncased-vocab.txt"
    shutil.copy(vocabulary, folder / "vocab.txt")


def prepare(folder: Path, request: pytest.FixtureRequest) -> None:
    """Writes what the pages name: text, vocabularies, benchmarks, and .venv, where pytest runs."""
    if "BERT_JAX_REAL_DATA" in os.environ:
        take_real_text(folder, request)
    else:
        write_text(folder)
    shutil.copy(folder / "vocab.txt", folder / "bert-base-uncased-vocab.txt")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "text").mkdir()
    small_dump.write(folder / "enwiki-latest-pages-articles-multistream.xml.bz2")
    book = next((folder / "books").rglob("*.md")).read_text("utf-8")
    sentences = re.findall(r"[A-Z][^.!?#]{30,200}[.!?]", book)[:100]
    lines = [f"{' '.join(s.split())}\n" + "\n" * (i % 5 == 4) for i, s in enumerate(sentences)]
    (folder / "text/lines.txt").write_text("".join(lines))
    texts = [" ".join(sentence.split()) for sentence in sentences]
    write_tasks(folder, texts)
    rows = [{"id": i, "title": "", "text": text} for i, text in enumerate(texts)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["id", "title", "text"])
        writer.writeheader()
        writer.writerows(rows)
    (folder / "hub/data").mkdir(parents=True)
    for path in ("part-0.parquet", "hub/data/train-00000-of-00001.parquet"):
        write_parquet(folder / path, rows)
    write_saved(folder / "saved", rows)
    version = folder / "tfds/wikipedia/20230601.en/1.0.0"
    prepared_dataset.write(version, {"train": [rows]}, numbers=("id",))


def row_of(command: str) -> Typed | None:
    return next((row for row in TYPED if command.startswith(row.start)), None)


def with_paths(text: str) -> str:
    for shown, here in PATHS.items():
        text = text.replace(shown, here)
    return text


def typed(command: str) -> str:
    """The command as the test types it; empty if it does not."""
    row = row_of(command)
    return with_paths(row.instead.format(command) if row else command)


def needs_more(program: str) -> bool:
    """Whether a program imports a package of `PACKAGES` that it cannot use here."""
    imported = set(re.findall(r"^(?:from|import) (\w+)", program, re.MULTILINE)) & PACKAGES.keys()
    return any(not importlib.util.find_spec(name) for name in imported)


def has_compiler(command: str) -> bool:
    """Whether the compiler of a `bert-jax compile` is here: of TPUs, or of the GPUs it names."""
    if re.search("--topology=[^ ]*(a100|h100|l4)", command):
        return "BERT_JAX_GPU_COMPILER" in os.environ
    return "BERT_JAX_LIBTPU" in os.environ or importlib.util.find_spec("libtpu") is not None


class Shell:
    """A bash in a folder, into which the blocks of the pages are typed one after another."""

    def __init__(self, folder: Path):
        self.folder = folder
        env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=env | {"BERT_JAX_CACHE": str(folder / "cache")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()

    def run(self, command: str) -> tuple[int, str]:
        """Types a command; its exit code and output."""
        said = self.folder / ".said"
        clock = threading.Timer(600, os.killpg, [self._bash.pid, signal.SIGKILL])
        clock.start()
        self._bash.stdin.write(f"{{ {command}\n}} >.said 2>&1 </dev/null; echo $?\n")
        self._bash.stdin.flush()
        code = self._bash.stdout.readline()
        clock.cancel()
        output = said.read_text("utf-8", errors="replace")
        assert code, f"{command}\nends the shell, or takes more than 600 s\n{output}"
        return int(code), output

    def command(self, block: Block, shown_command: str, shown: str) -> None:
        command = typed(shown_command)
        wrong = shown.startswith(("error:", "usage:"))
        if command.startswith("bert-jax compile") and not wrong and not has_compiler(command):
            return  # `make slow` has it
        if command:
            code, said = self.run(command)
            assert (code != 0) == wrong, f"{block.place}: {command}\n{said}"
            assert shown in said, f"{block.place}: {command}\nsays\n{said}"

    def file(self, block: Block) -> None:
        """Saves a block of Python or YAML, and runs it if it is a program."""
        config = "def get_config" in block.text or block.language == "yaml"
        name = f"{'mine' if config else 'block'}.{'py' if block.language == 'python' else 'yaml'}"
        name = named[1] if (named := re.match(r"# (\w+\.py)\n", block.text)) else name
        (self.folder / name).write_text(with_paths(block.text))
        if block.language == "python" and not needs_more(block.text):
            code, said = self.run(f"python {name}")
            assert code == 0, f"{block.place}\n{said}"


@pytest.mark.slow
@pytest.mark.xdist_group("blocks")  # a night's takes as long as all slow tests with processes
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(PAGES[:2], id="README"),
        pytest.param(PAGES, id="all", marks=pytest.mark.nightly),
    ],
)
def test_every_block_can_be_typed_in_order(
    pages: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prepare(tmp_path, request)
    with Shell(tmp_path) as shell:
        for block in (block for page in pages for block in blocks_of(page)):
            if block.language in ("python", "yaml"):
                shell.file(block)
            elif block.language != "text":
                for command, shown in block.commands():
                    shell.command(block, command, shown)
    check_metrics(tmp_path / "run/metrics.jsonl")


def check_metrics(path: Path) -> None:
    """docs/training_reference.md describes every scalar that a run writes, and no other."""
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    measured = [record for record in records if record["kind"] in ("train", "eval")]
    written = {key for record in measured for key in record} - {"kind", "step", "phase", "time"}
    of_hosts = {key for key in written if key.startswith("hosts/")}
    page = PROSE[ROOT / "docs/training_reference.md"]
    assert of_hosts <= set(re.findall(r"`(hosts/\w+)`", page))
    written -= of_hosts
    written = {re.sub(r"^(\w+)/\w+/", r"\1/SOURCE/", key) for key in written}
    of_means = re.compile(r"^\w+/(?=count$|loss_margin$|accuracy_margin$)")
    written = {of_means.sub("OBJECTIVE/", key) for key in written}
    table = page.partition("| scalar |")[2].partition("\n\n")[0]
    described = set(
        re.findall(r"`([\w/]+)`", "".join(re.findall(r"^\|.*?\|", table, re.MULTILINE)))
    )
    sometimes = {"flops_utilization", "skipped_steps"}  # a CPU's peak is not known; none is skipped
    sometimes |= {f"OBJECTIVE/SOURCE/{what}" for what in ("loss", "accuracy")}  # of several sources
    assert described - sometimes == written - sometimes
