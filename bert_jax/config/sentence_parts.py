"""The parts of a sentence encoder after the encoder: plain data, named as sentence-transformers
does. What they compute is in api/sentence_vectors.py."""

import re
from dataclasses import dataclass
from typing import Final

# Over the tokens of a text; several are joined in their order.
POOLS: Final = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def parse_pools(text: str) -> tuple[str, ...]:
    """Returns the pools that a text lists, in its order."""
    return tuple(part.strip() for part in text.split(","))


# Of a dense layer, by the name of the class in PyTorch: the module that has it.
ACTIVATIONS: Final = {
    "Identity": "torch.nn.modules.linear",
    "Tanh": "torch.nn.modules.activation",
    "ReLU": "torch.nn.modules.activation",
    "GELU": "torch.nn.modules.activation",
    "Sigmoid": "torch.nn.modules.activation",
    "SiLU": "torch.nn.modules.activation",
}
_DENSE: Final = "Tanh"  # the default
_WIDEST: Final = 2**16


@dataclass(frozen=True)
class Pooling:
    """Makes a vector of the states of a text's tokens.

    Attributes:
        pools: of `POOLS`.
        include_prompt: whether the tokens of the prompt, [CLS] included, are pooled.
        state_width: numbers of a state.
    """

    pools: tuple[str, ...]
    include_prompt: bool
    state_width: int

    @property
    def width(self) -> int:
        """Numbers of the vector."""
        return len(self.pools) * self.state_width

    @property
    def title(self) -> str:
        return f"{'+'.join(self.pools)} pooling"


@dataclass(frozen=True)
class Dense:
    """A layer on the vector; with `residual` its input is added, through a matrix of its own if it
    has another width."""

    width_before: int
    width: int
    bias: bool
    activation: str  # of `ACTIVATIONS`
    residual: bool

    @property
    def title(self) -> str:
        return f"a dense layer of {self.width}"

    @property
    def setting(self) -> str:
        """The layer as `parse_dense` reads it."""
        parts = [str(self.width), self.activation * (self.activation != _DENSE)]
        parts += ["no_bias" * (not self.bias), "residual" * self.residual]
        return ":".join(filter(None, parts))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its weights by their names, matrices as [out, in]."""
        matrix = (self.width, self.width_before)
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": matrix}
        if self.bias:
            shapes["linear.bias"] = (self.width,)
        if self.residual and self.width != self.width_before:
            shapes["residual.weight"] = matrix
        return shapes


def parse_dense(text: str, width: int) -> tuple[Dense, ...]:
    """Returns the dense layers that a text lists, each as WIDTH[:ACTIVATION][:no_bias][:residual].

    width: of the vector before them.

    Raises:
        ValueError: says which part has another form.
    """
    found: list[Dense] = []
    for layer in map(str.strip, text.split(",")) if text.strip() else ():
        size, *words = layer.split(":")
        if not re.fullmatch("[0-9]{1,9}", size) or not 1 <= int(size) <= _WIDEST:
            raise ValueError(f"{layer!r} does not begin with a width from 1 to {_WIDEST:,}")
        activations = [word for word in words if word in ACTIVATIONS]
        others = [word for word in words if word not in (*ACTIVATIONS, "no_bias", "residual")]
        if others or len({*words}) < len(words) or len(activations) > 1:
            after = f"after its width {layer!r} may have one of {', '.join(ACTIVATIONS)}"
            raise ValueError(f"{after}; no_bias; residual")
        before = found[-1].width if found else width
        activation = activations[0] if activations else _DENSE
        found.append(
            Dense(before, int(size), "no_bias" not in words, activation, "residual" in words)
        )
    return tuple(found)


@dataclass(frozen=True)
class Normalize:
    """Divides the vector by its length."""

    title = "normalization"


@dataclass(frozen=True)
class Dropout:
    """Nothing outside of training."""

    rate: float
    title = "dropout"


Part = Pooling | Dense | Normalize | Dropout
