"""The pretraining model of a configuration: its parameters, declared and initialized.

It is an encoder with the heads of the objectives, or two of them (`replaced_token_model.py`), or an
encoder that is also a decoder (`denoising_model.py`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.model.layers import Keys
from bert_jax.model.positional_heads import guide
from bert_jax.objectives.denoising import DENOISING
from bert_jax.objectives.denoising_model import DenoisingModel
from bert_jax.objectives.disentangled_embeddings import GENERATOR, apart
from bert_jax.objectives.encoder_with_heads import PretrainingModel
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.replaced_token_model import ReplacedTokenModel, is_disentangled
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS
from bert_jax.parallel.partition import param_axes


def _model_class(objectives: Sequence[str]) -> type[PretrainingModel]:
    """Returns the class of a model: a generator is trained only beside its discriminator."""
    if DENOISING.name in objectives:
        return DenoisingModel
    both = {MASKED_LM.name, REPLACED_TOKENS.name} <= {*objectives}
    return ReplacedTokenModel if both else PretrainingModel


def declare(
    config: ModelConfig,
    compute: ComputeConfig,
    objectives: Sequence[str],
    *,
    pooler: bool = False,
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the model's graph and abstract parameters with logical axes; allocates nothing.

    pooler: whether there is one that no objective needs.
    """

    def make() -> PretrainingModel:
        cls = _model_class(objectives)
        return cls(config, compute, objectives, Keys(jax.random.key(0)), pooler=pooler)

    return nnx.split(nnx.eval_shape(make))


def parameter_count(config: ModelConfig, objectives: Sequence[str]) -> int:
    """Returns the number of trained values: without rows that only pad the vocabulary, or that the
    stack of the layers has for a LayerNorm that the first one lacks."""
    exact = dataclasses.replace(config, pad_vocab_to_multiple_of=1)
    state = declare(exact, ComputeConfig.plain(), objectives)[1]
    is_own = config.layers_of_parameters == config.num_hidden_layers  # of the first layer alone
    norm = config.hidden_size * (1 + config.norm_bias)
    unused = norm if is_own and not config.first_attention_norm else 0
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.to_pure_dict(state))) - unused


def vocabulary_paths(config: ModelConfig, objectives: Sequence[str]) -> set[tuple[str, ...]]:
    """Returns the names of the parameters that have a row for each entry of the vocabulary."""
    axes = param_axes(declare(config, ComputeConfig.plain(), objectives)[1])
    leaves = jax.tree_util.tree_leaves_with_path(axes, is_leaf=lambda x: isinstance(x, tuple))
    return {tuple(key.key for key in path) for path, names in leaves if names[0] == "vocab"}


def init_params(
    config: ModelConfig, compute: ComputeConfig, objectives: Sequence[str], key: jax.Array
) -> dict:
    """Returns newly initialized parameters as a plain nested dict of float32 arrays."""
    model = _model_class(objectives)(config, compute, objectives, Keys(key))
    params = nnx.to_pure_dict(nnx.state(model))
    if config.initializer == "positional_heads":
        params = guide(params, config)
    return apart(_shared(params)) if trains_apart(config, objectives) else params


def trains_apart(config: ModelConfig, objectives: Sequence[str]) -> bool:
    """Returns whether parameters are trained in the form of `disentangled_embeddings.apart`."""
    return _model_class(objectives) is ReplacedTokenModel and is_disentangled(config)


def _shared(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of both networks without the embeddings of the generator."""
    generator = params[GENERATOR]
    encoder = {name: part for name, part in generator["encoder"].items() if name != "embeddings"}
    return {**params, GENERATOR: {**generator, "encoder": encoder}}


def part_of(params: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that `like` has: without heads, or a pooler, that are not used."""
    return {
        name: part_of(params[name], below) if isinstance(below, dict) else params[name]
        for name, below in like.items()
    }
