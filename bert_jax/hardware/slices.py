"""TPU slices by their Cloud TPU names: v3-32, v5e-16, 2xv5e-256.

libtpu accepts any shape of any size, real or not (v6e:32x32); this table rejects unknown slices.
"""

import itertools
import math
import re
from dataclasses import dataclass

from bert_jax.hardware.accelerators import BY_DEVICE_KIND, Accelerator


@dataclass(frozen=True)
class Generation:
    """A TPU version.

    device_kind: of its JAX devices. platform: libtpu's name.
    cores, devices: per chip, as slice names count cores and as JAX counts devices.
    shapes: chips along each axis of every slice, from small to large.
    torus: an axis with at least this many chips wraps around; in 3D only if all axes do.
    eight: a slice of eight chips is a single host; other hosts have four chips.
    """

    name: str
    device_kind: str
    platform: str
    cores: int
    devices: int
    shapes: tuple[tuple[int, ...], ...]
    torus: int
    eight: bool = False

    @property
    def accelerator(self) -> Accelerator:
        return BY_DEVICE_KIND[self.device_kind]


def _cubes(most: int) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of 3D slices, of up to `most` cubes of 4x4x4 chips.

    The cubes are arranged as close to a cube as possible; if a side were longer than 64 cubes, no
    such slice exists.
    """
    shapes: list[tuple[int, ...]] = [(2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)]
    for count in range(1, most + 1):
        boxes = (
            (a, b, count // (a * b))
            for a, b in itertools.combinations_with_replacement(range(1, count + 1), 2)
            if count % (a * b) == 0 and count // (a * b) >= b
        )
        box = min(boxes, key=lambda sides: (sum(sides), sides[-1]))
        if box[-1] <= 64:
            shapes.append(tuple(4 * side for side in box))
    return tuple(shapes)


# Cloud TPU documentation, the page of each version, and MaxText's table for ahead-of-time
# compilation (accelerator_to_spec_map.py). Names of v2, v3, v4 and v5p count cores, two per chip,
# those of v5e and v6e chips; TPU7x is sold by chips, and named by cores as in MaxText and XPK.
_SQUARES = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_LITE = ((1, 1), (2, 2), (2, 4), *_SQUARES[1:])
GENERATIONS = {
    row.name: row
    for row in (
        Generation("v2", "TPU v2", "v2", 2, 2, _SQUARES, torus=16),
        Generation("v3", "TPU v3", "v3", 2, 2, (*_SQUARES, (16, 32), (32, 32)), torus=32),
        Generation("v4", "TPU v4", "v4", 2, 1, _cubes(64), torus=4),
        Generation("v5e", "TPU v5 lite", "v5e", 1, 1, _LITE, torus=16, eight=True),
        Generation("v5p", "TPU v5", "v5", 2, 1, _cubes(96), torus=4),
        Generation("v6e", "TPU v6 lite", "v6e", 1, 1, _LITE, torus=16, eight=True),
        Generation("tpu7x", "TPU7x", "tpu7x", 2, 2, _cubes(144), torus=4),
    )
}
ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x"}
_MAX_SLICES = 256


@dataclass(frozen=True)
class Slice:
    """One or more equal slices connected by DCN; `shape` is chips along each axis of a slice."""

    generation: Generation
    shape: tuple[int, ...]
    count: int = 1

    @property
    def name(self) -> str:
        times = f"{self.count}x" if self.count > 1 else ""
        return f"{times}{self.generation.name}-{self.size}"

    @property
    def size(self) -> int:
        """Cores or chips of one slice, whichever its name counts."""
        return self.slice_chips * self.generation.cores

    @property
    def slice_chips(self) -> int:
        """Chips of one slice."""
        return math.prod(self.shape)

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.count * self.slice_chips

    @property
    def devices(self) -> int:
        """JAX devices of all slices."""
        return self.chips * self.generation.devices

    @property
    def linked(self) -> int:
        """JAX devices of one slice, which ICI joins."""
        return self.devices // self.count

    @property
    def accelerator(self) -> Accelerator:
        return self.generation.accelerator

    @property
    def usable_bytes(self) -> int | None:
        """Memory of a device that the compiler allows a program."""
        return self.accelerator.usable_bytes

    @property
    def host_bounds(self) -> tuple[int, int, int]:
        """Chips along each axis of one host."""
        alone = self.slice_chips == 1 or (self.generation.eight and self.slice_chips == 8)
        x, y, *z = self.shape if alone else (2, 2)
        return x, y, z[0] if z else 1

    @property
    def hosts(self) -> int:
        """Hosts of all slices."""
        return self.chips // math.prod(self.host_bounds)

    @property
    def topology(self) -> str:
        """libtpu's name for the shape of one slice."""
        return f"{self.generation.platform}:{'x'.join(map(str, self.shape))}"

    @property
    def chip_config(self) -> str:
        """libtpu's name for how a chip's cores form devices."""
        return "megacore" if self.generation.cores > self.generation.devices else "default"

    @property
    def wrap(self) -> tuple[bool, bool, bool]:
        """Returns whether the links wrap around, for each axis."""
        long = [side >= self.generation.torus for side in self.shape]
        if len(long) == 3:
            long = [all(long)] * 3
        x, y, *z = long
        return x, y, bool(z and z[0])


def find(name: str) -> Slice:
    """Returns the slices of a name like v5e-16, v5litepod-16 or 2xv5e-256; ValueError, with the
    nearest ones, if no such slice exists."""
    plain = name.strip().lower()
    words = re.fullmatch("(?:([0-9]+)x)?(?:tpu[ -]?)?([a-z]*[0-9]+[a-z]*)[-:]([0-9x]+)", plain)
    kind = ALIASES.get(words[2], words[2]) if words else ""
    generation = GENERATIONS.get(kind) or GENERATIONS.get(f"tpu{kind}")
    if words is None or generation is None:
        raise ValueError(
            f'"{name}" is not a TPU slice; give one of {", ".join(GENERATIONS)} with its size '
            "after a dash, such as v5e-16, or 2xv5e-256 for several slices"
        )
    count, size = int(words[1] or 1), words[3]
    if not 1 <= count <= _MAX_SLICES:
        raise ValueError(f"{name}: give 1 to {_MAX_SLICES} slices, as in 2x{generation.name}-…")
    known = [Slice(generation, shape, count) for shape in generation.shapes]
    by_size = {candidate.size: candidate for candidate in known}
    if size.isdecimal() and int(size) in by_size:
        return by_size[int(size)]
    raise ValueError(f"{name} does not exist{_nearest(known, size)}")


def _nearest(known: list[Slice], size: str) -> str:
    """Returns a hint with slices close to a size or shape that does not exist."""
    sides = [int(side) for side in size.split("x") if side]
    cores, wanted = known[0].generation.cores, math.prod(sides)
    if "x" in size:
        for candidate in known:
            if sorted(candidate.shape) == sorted(sides):
                return f"; {size} chips are {candidate.name}"
        wanted *= cores
    smaller = [candidate for candidate in known if candidate.size < wanted][-1:]
    larger = [candidate for candidate in known if candidate.size >= wanted][:1]
    both = " and ".join(f"{s.name} ({s.topology.partition(':')[2]})" for s in smaller + larger)
    counted = " (its name counts cores, two per chip)" if cores == 2 else ""
    return f"; nearest: {both}{counted}"
