"""Matrix products of a program compiled for GPUs: operations and types of the operands.

XLA's own are `dot` instructions inside Triton fusions; cuBLAS and cuBLASLt calls have their
dimensions in the backend's configuration. cuDNN's attention counts by formula: two products of the
scores' size forward, five backward, which computes the scores again (Dao 2023, "FlashAttention-2").
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from bert_jax.aot.hlo.parser import Computation, Instruction, Module
from bert_jax.aot.hlo.sources import Source

_CUBLAS = re.compile(r'"lhs_contracting_dimensions":\s*\[([^\]]*)\]')
_ATTENTION = "__cudnn$fmha"
_SCORES = re.compile(r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*\[([^\]]*)\]')


@dataclasses.dataclass(frozen=True)
class Product:
    """One matrix product. dtype: of its operands, both where they differ: "bf16", "bf16 x f32".
    flops: multiplications and additions of one execution."""

    dtype: str
    flops: int


@dataclasses.dataclass(frozen=True)
class ProductTotal:
    """Products of a type, of the optimizer or not: totals of a step."""

    dtype: str
    of_optimizer: bool
    runs: int
    flops: int


@dataclasses.dataclass(frozen=True)
class Placed:
    """A product with its source line and its executions per step; in_logits: the function of the
    model that computes words' scores has it, backward too."""

    product: Product
    source: Source
    runs: int
    in_logits: bool = False

    @property
    def of_optimizer(self) -> bool:
        return self.source.part == "optimizer"

    @property
    def is_by_design(self) -> bool:
        """True for those of the gradient of the words' scores, which are in float32 on purpose:
        rounding it would make others less exact (docs/gpu.md)."""
        return self.in_logits and self.source.direction == "backward"


def of(module: Module, computation: Computation, instruction: Instruction) -> list[Product]:
    """Returns the products that an instruction computes, those inside a fusion included."""
    if instruction.opcode == "custom-call":
        return list(_of_call(computation, instruction))
    if instruction.opcode == "dot":
        return [_of_dot(computation, instruction)]
    fused = module.fused(instruction)
    inner = fused.instructions if fused else ()
    return [product for i in inner for product in of(module, fused, i)] if fused else []


def totals(placed: Sequence[Placed]) -> tuple[ProductTotal, ...]:
    """Returns totals by type, most operations first, the optimizer's apart."""
    groups: Mapping[tuple[str, bool], list[Placed]] = collections.defaultdict(list)
    for one in placed:
        groups[one.product.dtype, one.of_optimizer].append(one)
    each = [
        ProductTotal(*key, sum(p.runs for p in group), sum(p.runs * p.product.flops for p in group))
        for key, group in groups.items()
    ]
    return tuple(sorted(each, key=lambda total: (total.of_optimizer, -total.flops)))


def wide(placed: Sequence[Placed], *, by_design: bool = False) -> dict[str, int]:
    """Returns operations by source line of the model's products that are not in 16 bits: mistakes
    where the model computes in bfloat16, or those that are meant to be so."""
    lines: collections.Counter[str] = collections.Counter()
    for one in placed:
        if one.is_by_design != by_design:
            continue
        narrow = all(part in ("bf16", "f16") for part in one.product.dtype.split(" x "))
        if not (one.of_optimizer or narrow or one.product.dtype.startswith("f8")):
            lines[f"{one.source.line} {one.source.direction}"] += one.runs * one.product.flops
    return dict(lines.most_common())


def _of_dot(computation: Computation, dot: Instruction) -> Product:
    left, right = computation.operands(dot)[:2]
    return _product(left, right, _contracted(dot.attribute("lhs_contracting_dims")), dot)


def _of_call(computation: Computation, call: Instruction) -> Iterator[Product]:
    operands = computation.operands(call)
    if call.target.startswith("__cublas") and (found := _CUBLAS.search(call.rest)):
        yield _product(operands[0], operands[1], _contracted(found[1]), call)
    elif call.target.startswith(_ATTENTION) and (scores := _SCORES.search(call.rest)):
        head = operands[0].shapes[0].dims[-1]
        size = math.prod(_contracted(scores[1]))
        for _ in range(5 if call.target.endswith("Backward") else 2):
            yield Product(operands[0].shapes[0].dtype, 2 * size * head)


def _product(
    left: Instruction, right: Instruction, contracted: Sequence[int], result: Instruction
) -> Product:
    one, other = left.shapes[0], right.shapes[0]
    over = math.prod(one.dims[axis] for axis in contracted)
    dtype = one.dtype if one.dtype == other.dtype else f"{one.dtype} x {other.dtype}"
    return Product(dtype, 2 * result.shapes[0].size * over)


def _contracted(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
