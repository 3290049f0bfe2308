"""Source kind `python`: English prose that every Python carries, the corpus of the demo.

The language reference's topics (`pydoc_data.topics`, one document a topic) and the docstrings of
the standard library (one document a module, in order), both read with `ast` from the sources:
nothing is imported or run. Tests and site-packages are left out. What there is depends on the
Python: distributions that split the library may lack `pydoc_data`.
"""

import ast
import inspect
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources import finding
from bert_jax.data_pipeline.sources.document import Document, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.text.clean import Rule, replace, unwrap

MARKUP = False
CUT_BECAUSE = CUT_REMEDY = ""
TOPICS = "pydoc_data/topics.py"
_LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled")
_WORD = re.compile("""["'(*]*[A-Za-z][A-Za-z\u2019'/-]*[.,;:!?)"'*]*""")
_FEWEST_WORDS = 3
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def standard_library() -> Path:
    """The folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find(spec: SourceSpec) -> Found:
    """The modules of a library folder, pydoc_data/topics.py among them.

    Raises:
        UserError: no Python sources there (an embedded or zipped Python).
    """

    def ignored(path: Path) -> bool:
        if path.name in _LEFT_OUT or path.name.startswith("config-"):
            return True
        return path.is_file() and (path.suffix != ".py" or not path.stat().st_size)

    is_source = "Python sources"
    return finding.find(spec, lambda path: True, is_source, ignored=ignored, text=False)


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """The topics, or the module's docstrings as one document if it has any."""
    tree = _parse(path)
    if path.as_posix().endswith(TOPICS):
        texts = [(topic, text) for topic, text in _topics(tree).items()]
    else:
        name = path.relative_to(spec.path).as_posix() if spec.path.is_dir() else path.name
        texts = [(name, "\n\n".join(_docstrings(tree)))]
    for name, text in texts:
        if text.strip():
            yield Document(
                id=f"{path.name}#{name}", source=spec.name, language=spec.language, text=text
            )


def _parse(path: Path) -> ast.Module:
    try:
        with tokenize.open(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's docstrings
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not readable as Python source ({error})") from None


def _topics(tree: ast.Module) -> dict[str, str]:
    """`topics = {name: text}`, a literal."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return ast.literal_eval(node.value)
    return {}


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of the module, its classes and functions, in the order of the source."""
    definitions = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, definitions):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield inspect.cleandoc(text)
        # Statements hold definitions, expressions do not: they need not be walked.
        blocks = (getattr(node, field, ()) for field in _BLOCKS)
        pending.extend(reversed([statement for block in blocks for statement in block]))


def _is_prose(paragraph: str) -> bool:
    """Whether most tokens are words: not code, a signature, a table or a grammar rule.

    Indented paragraphs are code more often than not, and must look like prose more clearly.
    """
    tokens = paragraph.split()
    words = sum(bool(_WORD.fullmatch(token)) for token in tokens)
    share = 0.8 if paragraph.startswith("  ") else 0.6
    return words >= _FEWEST_WORDS and words >= share * len(tokens)


def _drop_code(text: str) -> tuple[str, int]:
    paragraphs = [p for p in re.split(r"\n(?:[ \t]*\n)+", text) if p.strip()]
    kept = [p for p in paragraphs if _is_prose(p)]
    return "\n\n".join(kept), len(paragraphs) - len(kept)


RULES: tuple[Rule, ...] = (
    replace("doctest", r"^[ \t]*>>>[^\n]*(?:\n[ \t]*\S[^\n]*)*", "", needles=(">>>",)),
    replace("heading", r"^[^\n]*\n[ \t]*(?:=|-|~|\*|\^|\"|#){3,}[ \t]*$", ""),
    # ":func:`x`" and "``x``" to x; topics write *x* and "x" instead.
    replace("role", r":(?:[a-z]+:)?[a-z]+:`~?([^`\n]+)`", r"\1", needles=(":`",)),
    replace("literal", r"``?([^`\n]+)``?", r"\1", needles=("`",)),
    replace("emphasis", r"(?<![\w*])\*{1,2}(\w[^*\n]*?)\*{1,2}(?![\w*])", r"\1", needles=("*",)),
    replace("directive", r"^[ \t]*\.\. [a-z]+::[^\n]*$", "", needles=(".. ",)),
    # An item is a paragraph of its own.
    replace("list_marker", r"^[ \t]*(?:[*+•-]|\(?[0-9a-z][.)])[ \t]+(?=\S)", "\n"),
    replace("literal_block_mark", r"::[ \t]*$", ":", needles=("::",)),
    Rule("not_prose", _drop_code),
    unwrap(),
)
