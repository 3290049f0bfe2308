"""LAMB's trust ratio, per layer and per matrix, in its published variants.

LAMB (You et al. 2019, arXiv 1904.00962) multiplies Adam's update u = adam + weight_decay·p of each
tensor p by ‖p‖/‖u‖, or by 1 if either norm is zero. Each tensor is one matrix of one layer. Here
the layers are stacked into one array, and query, key and value are fused into one; `optax.lamb`
would compute one ratio for all of them. So norms are taken over the dimensions of one matrix, and
every layer and each of query, key and value has its own ratio.

| name           | bias       | ratio on LayerNorm | ratio   | as in
|                | correction | and biases         | within  |
|----------------|------------|--------------------|---------|-------------------------------------
| `lamb`         | yes        | no                 |         | MLPerf `lamb_optimizer_v1.py`, NVIDIA
|                |            |                    |         | PyTorch, TF models and tfa `lamb.py`
| `lamb_albert`  | no         | no                 |         | google-research/albert
|                |            |                    |         | `lamb_optimizer.py:95-120`
| `lamb_all`     | yes        | yes                |         | NVIDIA TF2 `optimization.py:99-107`,
|                |            |                    |         | `optax.lamb` on separate tensors
| `lamb_clamped` | no         | yes                | .01, .3 | DeepSpeed `fused_lamb_cuda_kernel.cu`

LayerNorm and biases have no weight decay in any variant. Where the sources differ:

- NVIDIA PyTorch (`use_nvlamb=False`) omits the ratio for tensors whose decay is zero, which its
  recipe sets for LayerNorm and biases. Here `weight_decay=0` does not switch the ratio off.
- DeepSpeed's kernel applies the ratio to every tensor and clips it to [0.01, 10] by default; no
  bias correction and [0.01, 0.3] are the settings of its BERT recipe
  (`bing_bert/deepspeed_bsz64k_lamb_config_seq128.json`). In its fused transformer kernel query, key
  and value are one tensor.
- eps is 1e-6 in all but MLPerf (an option) and DeepSpeed (1e-8); here it is `config.optimizer.eps`.

Commits: mlcommons/training aa344c7, albert b772393, NVIDIA DeepLearningExamples 729963d, DeepSpeed
06076c6, DeepSpeedExamples 0d011b5.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.optimizers.adam import ADAMW, BERT_ADAMW
from bert_jax.optimizers.optimizer import Optimizer, weight_decay_mask
from bert_jax.parallel.partition import STACKED


@dataclasses.dataclass(frozen=True)
class Variant:
    """A published variant of LAMB: a row of the table above."""

    bias_correction: bool
    everywhere: bool  # the ratio on LayerNorm and biases too
    within: tuple[float, float] | None = None  # bounds of a ratio


VARIANTS = {
    "lamb": Variant(bias_correction=True, everywhere=False),
    "lamb_albert": Variant(bias_correction=False, everywhere=False),
    "lamb_all": Variant(bias_correction=True, everywhere=True),
    "lamb_clamped": Variant(bias_correction=False, everywhere=True, within=(0.01, 0.3)),
}


def scale_by_ratio(
    variant: Variant, axes: Any, matrices: Callable[[Any], Any]
) -> optax.GradientTransformation:
    """Returns a transformation that multiplies the update of each matrix by ‖p‖/‖update‖.

    Elements that are zero in p and in the update (padding rows of the vocabulary) stay zero and
    change no norm. Under `jit` norms are computed over the unsharded arrays, on any mesh.

    Args:
        axes: a tree like the parameters', with a tuple of dimension names for each array.
        matrices: parameters -> a tree of bools, False for LayerNorm and biases.
    """

    def scaled(update: jax.Array, p: jax.Array, names: tuple[str, ...], matrix: bool) -> jax.Array:
        if not (matrix or variant.everywhere):
            return update
        dims = tuple(i for i, name in enumerate(names) if name not in STACKED)
        norms = [jnp.sqrt(jnp.sum(jnp.square(x), dims, keepdims=True)) for x in (p, update)]
        defined = (norms[0] > 0) & (norms[1] > 0)
        ratio = norms[0] / jnp.where(defined, norms[1], 1)
        if variant.within:
            ratio = jnp.clip(ratio, *variant.within)
        return update * jnp.where(defined, ratio, 1)

    def update(updates: Any, state: optax.EmptyState, params: Any) -> tuple[Any, optax.EmptyState]:
        return jax.tree.map(scaled, updates, params, axes, matrices(params)), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def _lamb(variant: Variant) -> Optimizer:
    return dataclasses.replace(
        ADAMW if variant.bias_correction else BERT_ADAMW,
        after_decay=lambda axes: scale_by_ratio(variant, axes, weight_decay_mask),
    )


LAMB, LAMB_ALBERT, LAMB_ALL, LAMB_CLAMPED = map(_lamb, VARIANTS.values())
