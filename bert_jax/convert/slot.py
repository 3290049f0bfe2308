"""A tensor of transformers and the part of our parameters that it corresponds to."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

POOLER: Final = "pooler"


@dataclass(frozen=True)
class Slot:
    """The part of our parameters that corresponds to one of their tensors."""

    theirs: str
    ours: tuple[str, ...]
    index: tuple[int | slice, ...]  # the part of our leaf
    inputs: int | None  # leading input dimensions of a kernel; None: same layout
    before: int = 0  # rows of their tensor before ours, zero
    halves: bool = False  # of queries and keys whose rotary positions rotate other pairs than ours

    @property
    def group(self) -> str:
        """ "encoder", "pooler" or a head, by the key of its parameters."""
        return POOLER if self.ours[:2] == ("encoder", POOLER) else self.ours[0]

    def to_theirs(self, leaf: np.ndarray) -> np.ndarray:
        """Extracts their tensor from our leaf."""
        part = np.asarray(leaf)[self.index]
        if self.halves:
            part = _reordered(part, to_halves=True)
        if self.inputs is None:
            return part
        if self.inputs == 0:
            return part.reshape(-1)
        return part.reshape(int(np.prod(part.shape[: self.inputs])), -1).T

    def shape_of_theirs(self, empty: np.ndarray) -> tuple[int, ...]:
        """Returns the shape of their tensor from zeros in the shape of our leaf, which takes no
        memory: another order of dimensions would be a copy."""
        first, *rest = replace(self, halves=False).to_theirs(empty).shape
        return (first + self.before, *rest)

    def to_ours(self, tensor: np.ndarray, leaf: np.ndarray) -> None:
        """Writes their tensor into its part of our leaf."""
        tensor = tensor[self.before :]
        part = (tensor.T if self.inputs else tensor).reshape(leaf[self.index].shape)
        leaf[self.index] = _reordered(part, to_halves=False) if self.halves else part


def _reordered(qkv: np.ndarray, *, to_halves: bool) -> np.ndarray:
    """Returns a kernel or bias [..., 3, A, D] with the dimensions of queries and keys in the order
    in which rotary positions rotate i and D/2 + i, or neighbours."""
    pairs = np.arange(qkv.shape[-1]).reshape(-1, 2)  # ours
    order = pairs.T.ravel() if to_halves else pairs.reshape(2, -1).T.ravel()
    return np.concatenate([qkv[..., :2, :, order], qkv[..., 2:, :, :]], axis=-3)
