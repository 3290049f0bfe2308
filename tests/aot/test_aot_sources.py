"""The parts and lines that cycles are counted to are those of the step as it is now.

Compiled for the CPU, whose programs have the same sources but no cycles.
"""

import ast
import inspect
from collections import Counter
from pathlib import Path

import jax
import pytest
from small_step import CORPUS, mesh_of, rows_of, small

import bert_jax
from bert_jax.aot.hlo import parser, sources
from bert_jax.aot.hlo.sources import Source
from bert_jax.model import encoder
from bert_jax.model.heads import word_logits
from bert_jax.training.step import make_step_functions


@pytest.fixture(scope="module")
def found() -> Counter[Source]:
    """How many instructions come from where, with dropout and every layer rematerialized."""
    config = small(
        model={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        compute={"remat": "full"},
    )
    mesh = mesh_of(config)
    # A program that was compiled before a file moved names the lines of that time.
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    try:
        with jax.set_mesh(mesh):
            program = make_step_functions(config, mesh, CORPUS)
            compiled = program.compile_train(rows_of(config), config.phases[0])
    finally:
        jax.config.update("jax_compilation_cache_include_metadata_in_key", False)
    module = parser.parse(compiled.as_text())
    return Counter(
        sources.source(module, computation, one)
        for computation in module.computations.values()
        for one in computation.instructions
        if one.op_name and one.opcode not in ("parameter", "constant")
    )


@pytest.mark.slow
def test_every_part_of_the_step_is_found(found: Counter[Source]) -> None:
    there = {(source.part, source.direction) for source in found}
    for part in ("embeddings", "attention", "feed-forward", "heads"):
        assert {d for p, d in there if p == part} >= {"forward", "backward"}, part
    for part in ("attention", "feed-forward"):
        assert (part, "recomputed") in there
    assert {d for p, d in there if p == "optimizer"} == {"update"}
    other = sum(n for source, n in found.items() if source.part == "other")
    assert other < 0.1 * found.total()


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (encoder.FeedForward, "self.up("),
        (encoder.FeedForward, "self.down("),
        (word_logits, "jnp.einsum("),
    ],
)
def test_a_line_of_the_model_is_named(found: Counter[Source], of: object, text: str) -> None:
    lines, first = inspect.getsourcelines(of)
    number = next(first + i for i, line in enumerate(lines) if text in line and "=" in line)
    file = Path(inspect.getfile(of)).relative_to(Path(bert_jax.__file__).parent)
    named = [source.line for source in found if source.line.startswith(f"{file}:{number}")]
    assert any(text in sources.code(line) for line in named)


@pytest.mark.parametrize("line", ["(no source)", "['opt']['mu']", "model/absent.py:3"])
def test_what_is_no_line_has_no_text(line: str) -> None:
    assert sources.code(line) == ""


@pytest.mark.parametrize(("path", "function", "part"), sources._RULES)
def test_what_a_part_is_found_by_is_there(path: str, function: str, part: str) -> None:
    """So that who renames a class or a file sees that its cycles would be counted elsewhere."""
    file = Path(bert_jax.__file__).parent / path
    assert file.exists()
    if function:
        tree = ast.parse(file.read_text())
        outer, _, inner = function.partition(".")
        named = {node.name: node for node in tree.body if hasattr(node, "name")}
        assert outer in named
        assert not inner or inner in {getattr(n, "name", "") for n in ast.walk(named[outer])}
