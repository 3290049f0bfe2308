"""Parameters that stay as they start: those of `config.optimizer.frozen`, and the encoder below a
linear head.

As with `requires_grad=False` of PyTorch, they have no moments, no weight decay and no part in the
global norm that is clipped: the optimizer does not see them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import optax

from bert_jax.checkpoint.fingerprint import path_of
from bert_jax.config.schema import Config
from bert_jax.config.task_model import probe_of
from bert_jax.errors import UserError, nearest, nearest_name
from bert_jax.parallel.partition import is_names

# Names of both parts in the state of an optimizer, and so in checkpoints, where they came with the
# first that could be frozen: the encoder below a head.
TRAINED: Final = "head"
_FROZEN: Final = "encoder"


def frozen_names(config: Config) -> tuple[str, ...]:
    """Returns the paths of parameters that stay as they are, each with all below it."""
    names = filter(None, map(str.strip, config.optimizer.frozen.split(",")))
    return (*names, *(("encoder",) if probe_of(config.model) else ()))


def without(
    names: Sequence[str], axes: Any, make: Callable[[Any], optax.GradientTransformation]
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer of all parameters but the named ones.

    Args:
        axes: a tree like the parameters', with a tuple of dimension names for each array.
        make: the axes of those that are trained -> their optimizer.

    Raises:
        UserError: there is no parameter of a name, or none is left.
    """
    paths = [path_of(path) for path, _ in _leaves(axes)]
    for name in names:
        if not any(_covers(name, path) for path in paths):
            raise UserError(
                f"config.optimizer.frozen: no parameter {name!r}{_nearest(name, paths)}"
            )
    if all(any(_covers(name, path) for name in names) for path in paths):
        raise UserError(
            f"config.optimizer.frozen={','.join(names)} leaves no parameter to train; name fewer"
        )
    parts = jax.tree_util.tree_map_with_path(
        lambda path, _: _FROZEN if any(_covers(name, path_of(path)) for name in names) else TRAINED,
        axes,
        is_leaf=is_names,
    )
    trained = jax.tree.map(
        lambda part, own: own if part == TRAINED else optax.MaskedNode(), parts, axes
    )
    return optax.partition({TRAINED: make(trained), _FROZEN: optax.set_to_zero()}, parts)


def _leaves(axes: Any) -> list[tuple[tuple, Any]]:
    return jax.tree_util.tree_leaves_with_path(axes, is_leaf=is_names)


def _covers(name: str, path: str) -> bool:
    return path == name or path.startswith(f"{name}/")


def _nearest(name: str, paths: Sequence[str]) -> str:
    """Returns the end of a message: the nearest name, or the first levels of all."""
    parts = [path.split("/") for path in paths]
    valid = {"/".join(p[:end]) for p in parts for end in range(1, len(p) + 1)}
    if nearest_name(name, valid) is None:
        valid = {"/".join(p[:2]) for p in parts}
    return nearest(name, valid)
