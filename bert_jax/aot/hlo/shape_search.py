"""Which instructions of a compiled program have results of a shape: for what must not be there."""

from collections.abc import Callable, Iterator

from bert_jax.aot.hlo import loops, parser
from bert_jax.aot.hlo.parser import Instruction, Module, Shape

Found = tuple[tuple[Instruction, Shape], ...]

# Other names for what is written already.
_VIEWS = {
    "bitcast", "get-tuple-element", "tuple", "parameter", "while", "conditional", "call",
}  # fmt: skip


def computed(text: str, wanted: Callable[[Shape], bool]) -> Found:
    """All of them, those inside fusions too: not in memory, but computed.

    Args:
        text: `jax.stages.Compiled.as_text()`; shapes are those of one device.
    """
    module = parser.parse(text)
    return tuple(_of(module, wanted, set(module.computations), set()))


def with_size(text: str, size: int) -> Found:
    """Those with a dimension of this size, such as the rows of the global batch."""
    return computed(text, lambda shape: size in shape.dims)


def written(text: str, wanted: Callable[[Shape], bool]) -> Found:
    """Only those that are kept in memory, each array once: no views, nothing inside fusions.

    For example, the float32 copies of the logits that a step keeps.
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
