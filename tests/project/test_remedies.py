"""Every command and name in a message exists; what a message says to type is typed here.

A message is any text in the code that is not documentation. Commands of other programs are listed
in `OTHERS`, with a test that follows them, or with the reason why none can.
"""

import ast
import dataclasses
import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from absl import flags

from bert_jax import cli
from bert_jax.commands.command import define_flags
from bert_jax.config.ablation import AblationConfig
from bert_jax.config.config_files import load
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline import sources
from bert_jax.errors import UserError, conversion

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    path
    for folder in ("bert_jax", "data_pipeline", "launch")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
# Of other programs -> the test that follows it, or why none does.
OTHERS: Mapping[str, str] = {
    "iconv": "test_text_in_another_encoding_can_be_converted",
    "jq": "test_an_array_can_be_made_lines",
    "pip install": "test_an_extra_exists",
    "pandoc": "converts documents of every kind; not installed where tests run",
    "pdftotext": "likewise",
    "tfds build": "downloads a dataset",
    "git lfs pull": "asks a server",
    "gcloud": "asks Google Cloud; its commands are in tests/launch",
    "kubectl": "asks a cluster; likewise",
    "nvidia-smi": "needs a GPU",
    "sha256sum": "of coreutils",
    "docker": "builds an image",
}
# Of these programs, of absl (--help), of pip and its files, of sbatch, of Beam's workers; a
# placeholder in --help.
FOREIGN_FLAGS = {"file_format", "help", "target", "hash", "label", "extra_package", "flag", "qos"}
# Not settings: files, and words before a placeholder.
NO_SETTINGS = {"json", "py", "yaml", "yml", "init"}


def documentation(tree: ast.Module) -> set[int]:
    """The ids of the nodes of docstrings."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def texts() -> Iterator[tuple[str, str]]:
    """The place and the text of every message; {} stands for a value."""
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped = documentation(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in node.values}
                parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in skipped:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", str(node.value)


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Texts that are no single word of a command, and no shell script."""
    return [(where, text) for where, text in texts() if " " in text and text[:4] != "set "]


GROUPS = {verb.split()[0] for verb in cli.COMMANDS}


def flags_of(verb: str) -> set[str]:
    values = flags.FlagValues()
    define_flags(cli.COMMANDS[verb], values, [])
    return set(values)


FLAGS = {verb: flags_of(verb) for verb in cli.COMMANDS}


def verb_of(words: str) -> str:
    """The command that words behind `bert-jax` begin with; "" if none."""
    first, *rest = words.split()
    pair = f"{first} {rest[0]}" if rest else ""
    return pair if pair in cli.COMMANDS else first if first in cli.COMMANDS else ""


def test_a_command_of_bert_jax_exists() -> None:
    wrong = []
    for where, text in messages():
        for typed in re.finditer(r"(`?)bert-jax ([a-z_]+(?: [a-z_]+)?)(?=( --)?)", text):
            is_command = typed[1] or typed[3] is not None
            if is_command and not verb_of(typed[2]) and typed[2].split()[0] not in GROUPS:
                wrong.append(f"{where}: {typed[0]}")
    assert not wrong, "\n".join(wrong)


def test_a_flag_exists() -> None:
    """One behind a command of bert-jax is of that command; any other, of some command."""
    wrong = []
    every = set().union(*FLAGS.values())
    for where, text in messages():
        for flag in re.finditer(r"(?<![\w-])--([a-z][a-z_]+)(?=[=\s.,;:)`']|$)", text):
            before = re.findall(r"bert-jax ([a-z_]+(?: [a-z_]+)?)[^;`]*$", text[: flag.start()])
            verb = verb_of(before[-1]) if before else ""
            known = FLAGS[verb] if verb else every
            if flag[1] not in known | FOREIGN_FLAGS:
                wrong.append(f"{where}: {flag[0]}{f' of {verb}' if verb else ''}")
    assert not wrong, "\n".join(wrong)


def test_a_setting_exists() -> None:
    keys = {re.sub(r"\[\d+\]", "[]", key) for key in flatten(to_dict(load("demo")))}
    keys |= {re.sub(r"\[\d+\]", "[]", key) for key in flatten(to_dict(load("glue")))}
    keys |= {field.name for field in dataclasses.fields(AblationConfig)}
    prefixes = {key[:end] for key in keys for end in range(len(key) + 1)}
    wrong = []
    for where, text in messages():
        for name in re.finditer(r"\bconfig\.([a-z_]+(?:\[[^\]]*\]|\.[a-z_]+)*)", text):
            key = re.sub(r"\[[^\]]*\]", "[]", name[1])
            if not NO_SETTINGS & {*key.split(".")} and key not in prefixes:
                wrong.append(f"{where}: config.{name[1]}")
    assert not wrong, "\n".join(wrong)


def test_an_extra_exists() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    extras = set(re.findall(r'^    "(\w+)": \[', setup, re.MULTILINE))
    named = {(w, e) for w, text in messages() for e in re.findall(r"bert-jax\[(\w+)\]", text)}
    assert named
    assert {pair for pair in named if pair[1] not in extras} == set()


def test_a_kind_of_source_exists() -> None:
    named = {k for _, text in messages() for k in re.findall(r"--source=([a-z]+)[: ;)]", text)}
    assert named
    assert named <= set(sources.KINDS)


def test_a_command_of_another_program_is_followed() -> None:
    known = "|".join(map(re.escape, OTHERS))
    typed = re.compile(rf"`([a-z][\w-]+) |\b({known})\b")
    found = {m[1] or m[2] for _, text in messages() for m in typed.finditer(text)}
    programs = {word for word in found if shutil.which(word) or word in OTHERS} - {"bert-jax"}
    listed = {word for name in OTHERS for word in (name, name.split()[0])}
    assert programs <= listed, "list these in OTHERS, with the test that follows them"
    names = {name for name in OTHERS.values() if name.startswith("test_")}
    assert names <= set(globals())


SAID = "\u201cIt\u2019s only a caf\xe9\u201d, he said.\n\nShe left \u2013 at once.\n"


def followed(folder: Path, data: bytes, encoding_said: str) -> str:
    """The text after the command of the reader's message was typed."""
    old, new = folder / "OLD", folder / "NEW"
    old.write_bytes(data)
    with pytest.raises(UserError, match="convert it") as error:
        list(sources.read(sources.parse_source(f"lines:{old}"), old))
    command = re.search(r"iconv [^(,]*NEW(\.txt)?", str(error.value))
    assert command
    assert encoding_said in command[0]
    words = command[0].split()
    place = words.index(">")
    done = subprocess.run(
        [str(old) if w.startswith("OLD") else w for w in words[:place]],
        capture_output=True, check=True,
    )  # fmt: skip
    new.write_bytes(done.stdout)
    (document,) = sources.read(sources.parse_source(f"books:{new}"), new)
    return document.text


@pytest.mark.skipif(not shutil.which("iconv"), reason="iconv is not installed")
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16"])
def test_text_in_another_encoding_can_be_converted(tmp_path: Path, encoding: str) -> None:
    said = SAID if encoding != "latin-1" else "It's only a caf\xe9, he said.\n\nShe left.\n"
    text = followed(tmp_path, said.encode(encoding), "" if encoding == "utf-16" else "CP1252")
    assert text.split() == said.split()


def test_a_command_that_converts_is_one_of_iconv() -> None:
    assert conversion(b"\xff\xfea\0").startswith("iconv -f UTF-16 -t UTF-8 ")
    assert conversion(b"caf\xe9").startswith("iconv -f CP1252 -t UTF-8 ")


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_an_array_can_be_made_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('[{"text": "One."}, {"text": "Two."}]')
    spec = sources.parse_source(f"jsonl:{file}")
    with pytest.raises(UserError, match=r"jq -c '\.\[\]'"):
        list(sources.read(spec, file))
    done = subprocess.run(["jq", "-c", ".[]", str(file)], capture_output=True, check=True)
    file.write_bytes(done.stdout)
    assert [document.text for document in sources.read(spec, file)] == ["One.", "Two."]
