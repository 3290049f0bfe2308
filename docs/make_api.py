"""Writes docs/api.md from the docstrings of the names that `bert_jax` exports.

python docs/make_api.py
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import bert_jax

PAGE: Final = Path(__file__).with_name("api.md")
_INTRODUCTION: Final = """\
# Python

Everything that a program or a notebook needs is a name of `bert_jax`; the commands do the same
([a notebook](notebooks/first_hour.ipynb)). Wrong input raises `bert_jax.UserError` with one line
that says what to do. Written by `python docs/make_api.py` from the docstrings.
"""
_SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Data": ("build_store", "open_store", "TokenStore", "inspect", "batches"),
    "Runs": ("config", "Config", "Config.replace", "pretrain", "export"),
    "Models": (
        *("load", "Model", "Model.encode", "Model.hidden_states", "Model.fill_mask", "Fill"),
        *("Model.predict", "Prediction", "Model.tag", "Model.answer", "Answers", "Answer"),
        "Model.choose",
    ),
    "Errors": ("UserError", "StoppedError", "NumbersError", "StorageError"),
}
_HEADING = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)
_ITEM = re.compile(r"^([\w, ]+): ", re.MULTILINE)


def page() -> str:
    """Returns the text of docs/api.md."""
    parts = [_INTRODUCTION]
    for title, names in _SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += (_entry(name) for name in names)
    return "\n".join(f"{part.strip()}\n" for part in parts)


def _entry(name: str) -> str:
    value: Any = bert_jax
    for part in name.split("."):
        value = getattr(value, part)
    signature = "" if inspect.isclass(value) else f"```text\n{_signature(name, value)}\n```\n\n"
    return f"### {name}\n\n{signature}{_markdown(inspect.cleandoc(value.__doc__ or ''))}"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Returns a function's head as in its source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    arguments = ast.unparse(node.args).removeprefix("self, ")
    returns = ast.unparse(node.returns).strip("'") if node.returns else "None"
    text = f"bert_jax.{name}({arguments}) -> {returns}"
    return textwrap.fill(text, 100, subsequent_indent="    ", break_long_words=False)


def _markdown(docstring: str) -> str:
    """Returns a docstring with its sections as lists."""
    text, *sections = _HEADING.split(docstring)
    lists = zip(sections[::2], sections[1::2], strict=True)
    return "".join(f"{part}\n" for part in (text.rstrip() + "\n", *map(_section, lists)))


def _section(section: tuple[str, str]) -> str:
    title, body = section
    body = textwrap.dedent(body.strip("\n")).rstrip()
    if not _ITEM.match(body):
        return f"**{title}**: {body}\n"
    return f"**{title}**\n\n" + "\n".join(_items(body)) + "\n"


def _items(body: str) -> Iterator[str]:
    """Yields the items of a list, each with its name as code."""
    for item in re.split(r"\n(?=\S)", body):
        yield _ITEM.sub(lambda names: f"- `{names[1]}`: ", re.sub(r"\n\s+", " ", item), count=1)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
