"""Maps a collective's replica groups to mesh axes.

Device numbers in a compiled program are row-major positions in the mesh. A program for several
slices numbers the devices of one slice: between slices libtpu uses sends (collectives.py).
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_MESH = re.compile(r"@?mesh\[([^\]]*)\](?:, ?device_ids=\(([^{]*)\))? ?\{([^}]*)\}")
_AXIS = re.compile(r"'?([^':,=]+)'?(?::\((\d+)\)(\d+))?'?")


def parse(text: str, devices: int) -> Groups:
    """Parses the groups of `replica_groups=…` or the pairs of `source_target_pairs=…`.

    Three formats: lists `{{0,1},{2,3}}` (`{}`: one group of all), `[4,64]<=[64,4]T(1,0)`, an iota
    reshaped, transposed and reshaped to (groups, devices per group), and named axes of the
    compiler's own mesh, `mesh['axis_0'=2,'axis_1'=8], device_ids=([8,2]T(1,0)) {'axis_0'}`, whose
    axes may be split: `'axis_1':(2)4` is 4 within 2. (xla/hlo/ir/replica_group.cc, openxla/xla)

    Raises:
        ValueError: the format is unknown.
    """
    text = text.strip()
    if text in ("", "{}"):
        return (tuple(range(devices)),)
    if text.startswith("{{"):
        groups = re.findall(r"\{([\d,]+)\}", text)
        return tuple(tuple(map(int, group.split(","))) for group in groups)
    if mesh := _MESH.fullmatch(text):
        return _rows(_of_mesh(*mesh.groups()))
    if iota := _IOTA.fullmatch(text):
        return _rows(_iota(iota).reshape(_numbers(iota[1])))
    raise ValueError(f"replica groups in an unknown format: {text}")


def _rows(array: np.ndarray) -> Groups:
    return tuple(tuple(map(int, row)) for row in array)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _iota(match: re.Match[str]) -> np.ndarray:
    """Expands `[…]<=[8,2]T(1,0)`; in a mesh's `device_ids` the first brackets are the reshape."""
    dims = _numbers(match[2] or match[1])
    numbers = np.arange(math.prod(dims)).reshape(dims)
    return numbers.transpose(_numbers(match[3])) if match[3] else numbers


def _of_mesh(axes: str, ids: str | None, joined: str) -> np.ndarray:
    """Returns [groups, devices per group] for a mesh with named axes."""
    sizes: dict[str, int] = {}
    for axis in axes.split(","):
        name, _, size = axis.rpartition("=")
        sizes[name.strip("'")] = int(size)
    if ids is None:
        numbers = np.arange(math.prod(sizes.values()))
    elif iota := _IOTA.fullmatch(ids):
        numbers = _iota(iota)
    else:
        numbers = np.array(_numbers(ids))
    # Each axis as (before, the part in the group, after).
    parts = {name: (size, 1, 1) for name, size in sizes.items()}
    for name, before, size in _AXIS.findall(joined):
        outside, inside = int(before or 1), int(size or sizes[name])
        parts[name] = (outside, inside, sizes[name] // outside // inside)
    dims = [size for part in parts.values() for size in part]
    inner = [3 * i + 1 for i in range(len(parts))]
    outer = [i for i in range(len(dims)) if i not in inner]
    numbers = numbers.reshape(dims).transpose(outer + inner)
    return numbers.reshape(-1, math.prod(dims[i] for i in inner))


def axes(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which the devices of a group differ, in the mesh's order.

    groups: replica groups or source-target pairs.
    """
    first = np.array([group[0] for group in groups for _ in group])
    every = np.array([device for group in groups for device in group])
    sizes = tuple(mesh.values())
    differ = [
        (a != b).any()
        for a, b in zip(np.unravel_index(first, sizes), np.unravel_index(every, sizes), strict=True)
    ]
    return tuple(name for name, different in zip(mesh, differ, strict=True) if different)


def spans(groups: Groups, joined: Sequence[str], mesh: Mapping[str, int]) -> bool:
    """Returns whether a group holds every device along these axes, not only some."""
    return len(groups[0]) == math.prod(mesh[axis] for axis in joined)
