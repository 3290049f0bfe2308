"""Maps an instruction to a part of the model and to a source line of this package.

Both come from the stack of source frames that JAX records with every operation. The backward pass
of an operation has the frames of its forward pass, so it maps to the same line; its name contains
`transpose(`. A fusion is attributed to the one operation that the compiler names it after, mostly
its last or its matrix product.
"""

import dataclasses
import linecache
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from bert_jax.aot.hlo.parser import Computation, Frame, Instruction, Module
from bert_jax.objectives.known_objectives import OBJECTIVES

Part = Literal[
    "embeddings", "attention", "feed-forward", "layer loop", "heads", "optimizer", "other"
]
Direction = Literal["forward", "recomputed", "backward", "update"]

PARTS: tuple[Part, ...] = get_args(Part)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

# (file or folder below bert_jax, prefix of the function's name, part). The innermost frame that
# matches a rule decides; the first matching rule wins.
_RULES: tuple[tuple[str, str, Part], ...] = (
    ("ops/attention", "", "attention"),
    ("model/attention.py", "", "attention"),
    ("model/encoder.py", "Embeddings.", "embeddings"),
    ("model/encoder.py", "FeedForward.", "feed-forward"),
    ("model/encoder.py", "Encoder.pooled", "heads"),
    ("model/encoder.py", "", "layer loop"),
    ("objectives", "", "heads"),
    ("optimizers", "", "optimizer"),
    ("training/skip_nonfinite.py", "", "optimizer"),
    ("training/step.py", "_make_train_step.", "optimizer"),
)

# Building blocks, files and folders: their lines are reported together with the calling line.
_SHARED = ("model/layers.py", "ops")

_PACKAGE = "bert_jax"
_ROOT = Path(__file__).parents[2]
_UNKNOWN = "(no source)"

# Parameter names, for instructions without a source: conversions that the compiler moved.
_PARAMETERS: tuple[tuple[str, Part], ...] = (
    ("['opt']", "optimizer"),
    ("['embeddings']", "embeddings"),
    ("['attention']", "attention"),
    ("['mlp']", "feed-forward"),
    ("['pooler']", "heads"),
    *((f"['{objective.head}']", "heads") for objective in OBJECTIVES.values()),
)

_MAX_HOPS = 8  # operands followed from an instruction without a source


@dataclasses.dataclass(frozen=True)
class Source:
    """line: `model/encoder.py:65`, or the name of a parameter, or "(no source)"."""

    part: Part
    direction: Direction
    line: str


def source(module: Module, computation: Computation, instruction: Instruction) -> Source:
    """Returns the source of an instruction.

    An instruction that the compiler added, such as a layout copy, takes the source of its operand.
    """
    value = instruction
    for _ in range(_MAX_HOPS):
        if stack := module.stack(value):
            owner = part(stack)
            return Source(owner, _direction(module.op_name(value), owner), line(stack))
        operands = computation.operands(value)
        if not operands:
            break
        value = operands[0]
    name = value.op_name.replace("\\", "") if value.opcode == "parameter" else ""
    owner = next((owner for key, owner in _PARAMETERS if key in name), "other")
    return Source(owner, _direction("", owner), name or _UNKNOWN)


def is_in(module: Module, instruction: Instruction, file: str, function: str) -> bool:
    """Returns whether an instruction comes from a function of a file below bert_jax."""
    stack = module.stack(instruction)
    return any(f.within(_PACKAGE) == file and f.function == function for f in stack)


def part(stack: Sequence[Frame]) -> Part:
    """Returns the part of the model, from frames ordered innermost first."""
    for frame in stack:
        file = frame.within(_PACKAGE)
        for path, function, name in _RULES:
            matches = file is not None and (file == path or file.startswith(path + "/"))
            if matches and frame.function.startswith(function):
                return name
    return "other"


def line(stack: Sequence[Frame]) -> str:
    """Returns the innermost line in our package: `model/encoder.py:65`.

    A building block's line follows its caller's: `model/encoder.py:65 > model/layers.py:44`.
    """
    ours = [(file, frame) for frame in stack if (file := frame.within(_PACKAGE)) is not None]
    if not ours:
        return _UNKNOWN
    inner, outer = ours[0], next((pair for pair in ours if not _is_shared(pair[0])), ours[0])
    return " > ".join(f"{file}:{frame.line}" for file, frame in dict.fromkeys((outer, inner)))


def _is_shared(file: str) -> bool:
    return file in _SHARED or str(PurePosixPath(file).parent) in _SHARED


def code(source_line: str) -> str:
    """Returns the text of the first line that a `Source.line` names, "" if it names none."""
    place = re.match(r"([\w/]+\.py):(\d+)", source_line)
    return linecache.getline(str(_ROOT / place[1]), int(place[2])).strip() if place else ""


def _direction(op_name: str, owner: Part) -> Direction:
    if "rematted_computation" in op_name:
        return "recomputed"
    if "transpose(" in op_name:
        return "backward"
    return "update" if owner == "optimizer" else "forward"
