"""Source kind `python`: English text shipped with every Python, the corpus of the demo.

Reads the topics of the language reference (`pydoc_data.topics`, one document per topic) and the
docstrings of the standard library (one document per module, in source order), both with `ast`:
nothing is imported or run. Skips tests and site-packages, but for packages that are named. The text
depends on the Python: distributions that split the library may lack `pydoc_data`.
"""

import ast
import dataclasses
import importlib.util
import inspect
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import finding
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.kind import PACKAGES, Kind
from bert_jax.data_pipeline.text.clean import Rule, replace, unwrap
from bert_jax.errors import UserError

TOPICS = "pydoc_data/topics.py"
_LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled")
_WORD = re.compile("""["'(*]*[A-Za-z][A-Za-z\u2019'/-]*[.,;:!?)"'*]*""")
_FEWEST_WORDS = 3
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def find(spec: SourceSpec) -> Found:
    """Returns the modules of a library folder, including pydoc_data/topics.py, then those of its
    packages; UserError if there are none (an embedded or zipped Python)."""
    found = [_find(spec, root) for root in (spec.path, *map(_folder, spec.packages))]
    files = [file for each in found for file in each.files]
    left_out: dict[str, list[str]] = {}
    for each in found:
        for reason, names in each.left_out.items():
            left_out.setdefault(reason, []).extend(names)
    return Found(files, left_out)


def _folder(package: str) -> Path:
    """Returns the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"packages={package}: no such package is installed; install it")
    return Path(spec.submodule_search_locations[0])


def _find(spec: SourceSpec, root: Path) -> Found:

    def ignored(path: Path) -> bool:
        if path.name in _LEFT_OUT or path.name.startswith("config-"):
            return True
        return path.is_file() and (path.suffix != ".py" or not path.stat().st_size)

    wanted = "Python sources"
    spec = dataclasses.replace(spec, path=root)
    return finding.find(spec, lambda path: True, wanted, ignored=ignored, text=False)


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the topics, or a module's docstrings as one document if it has any."""
    tree = _parse(part.path)
    if part.path.as_posix().endswith(TOPICS):
        texts = [*_topics(tree).values()]
    else:
        texts = ["\n\n".join(_docstrings(tree))]
    yield from (Document(text) for text in texts if text.strip())


def _parse(path: Path) -> ast.Module:
    try:
        with tokenize.open(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's docstrings
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError) as error:
        problem = f"cannot be parsed as Python source ({error})"
        raise UserError(f"{path}: {problem}; leave it out") from None


def _topics(tree: ast.Module) -> dict[str, str]:
    """Returns the literal of `topics = {name: text}`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return ast.literal_eval(node.value)
    return {}


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yields the docstrings of the module, its classes and functions, in source order."""
    definitions = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, definitions):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield inspect.cleandoc(text)
        # Only statements contain definitions, so expressions need not be walked.
        blocks = (getattr(node, field, ()) for field in _BLOCKS)
        pending.extend(reversed([statement for block in blocks for statement in block]))


def _is_prose(paragraph: str) -> bool:
    """Returns whether most tokens are words: not code, a signature, a table or a grammar rule.

    Indented paragraphs are usually code, so they need a higher share of words.
    """
    tokens = paragraph.split()
    words = sum(bool(_WORD.fullmatch(token)) for token in tokens)
    share = 0.8 if paragraph.startswith("  ") else 0.6
    return words >= _FEWEST_WORDS and words >= share * len(tokens)


def _drop_code(text: str) -> tuple[str, int]:
    paragraphs = [p for p in re.split(r"\n(?:[ \t]*\n)+", text) if p.strip()]
    kept = [p for p in paragraphs if _is_prose(p)]
    return "\n\n".join(kept), len(paragraphs) - len(kept)


_RULES: tuple[Rule, ...] = (
    replace("doctest", r"^[ \t]*>>>[^\n]*(?:\n[ \t]*\S[^\n]*)*", needles=(">>>",)),
    replace("heading", r"^[^\n]*\n[ \t]*(?:=|-|~|\*|\^|\"|#){3,}[ \t]*$"),
    # ":func:`x`" and "``x``" become x; topics use *x* and "x" instead.
    replace("role", r":(?:[a-z]+:)?[a-z]+:`~?([^`\n]+)`", r"\1", needles=(":`",)),
    replace("literal", r"``?([^`\n]+)``?", r"\1", needles=("`",)),
    replace("emphasis", r"(?<![\w*])\*{1,2}(\w[^*\n]*?)\*{1,2}(?![\w*])", r"\1", needles=("*",)),
    replace("directive", r"^[ \t]*\.\. [a-z]+::[^\n]*$", needles=(".. ",)),
    # Each list item becomes its own paragraph.
    replace("list_marker", r"^[ \t]*(?:[*+•-]|\(?[0-9a-z][.)])[ \t]+(?=\S)", "\n"),
    replace("literal_block_mark", r"::[ \t]*$", ":", needles=("::",)),
    Rule("not_prose", _drop_code),
    unwrap(),
)


KIND: Final = Kind(
    find,
    read,
    rules=_RULES,
    options=(PACKAGES,),
    locate=lambda path, data_dir: path or sysconfig.get_path("stdlib"),
)
