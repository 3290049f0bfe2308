"""Finds instructions with results of a given shape, to check that a program has none."""

from collections.abc import Callable, Iterator

from bert_jax.aot.hlo import loops, parser
from bert_jax.aot.hlo.parser import Instruction, Module, Shape

Found = tuple[tuple[Instruction, Shape], ...]

# Views of existing arrays.
_VIEWS = {
    "bitcast", "get-tuple-element", "tuple", "parameter", "while", "conditional", "call",
}  # fmt: skip


def computed(text: str, wanted: Callable[[Shape], bool]) -> Found:
    """Returns all matching results, including those inside fusions, which are not in memory.

    Args:
        text: `jax.stages.Compiled.as_text()`; shapes are per device.
    """
    module = parser.parse(text)
    return tuple(_of(module, wanted, set(module.computations), set()))


def with_size(text: str, size: int) -> Found:
    """Returns results with a dimension of this size, such as the rows of the global batch."""
    return computed(text, lambda shape: size in shape.dims)


def written(text: str, wanted: Callable[[Shape], bool]) -> Found:
    """Returns matching results stored in memory, each once: no views, nothing inside fusions.

    For example, the float32 copies of the logits that a step stores.
    """
    module = parser.parse(text)
    places = {place.computation.name for place in loops.executions(module).places}
    return tuple(_of(module, wanted, places, _VIEWS))


def _of(
    module: Module, wanted: Callable[[Shape], bool], places: set[str], but: set[str]
) -> Iterator[tuple[Instruction, Shape]]:
    for name in places:
        for one in module.computations[name].instructions:
            if one.opcode not in but and not (but and one.opcode.endswith("-done")):
                yield from ((one, shape) for shape in one.shapes if wanted(shape))
