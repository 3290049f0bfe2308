"""The peer of benchmarks/tpu_compile.py: the training step of transformers' FlaxBertForPreTraining.

Needs transformers 4.57, the last release with Flax models, which jax 0.10 and flax 0.12 still run;
`make .venv/peer` puts it apart, because the project itself works with a later one. The step is what
examples/flax/language-modeling/run_mlm_flax.py of that release does, in the form that is fastest
today: one jit over a mesh in place of pmap, the state donated, and the loss from integer labels. Of
its forms that makes the strongest peer: on base at 128, 64 rows a chip of v5e, 92.5 million
estimated cycles, where one-hot labels (as in that script) give 96.0 and a log-softmax from which
the label's entry is picked 98.8.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
VOCABULARY = 30522
NOT_MASKED = -100


def lower(
    mesh: Mesh,
    *,
    hidden_size: int,
    layers: int,
    heads: int,
    seq_length: int,
    rows: int,
    generator: str,
) -> jax.stages.Lowered:
    """The step for a batch of `rows` rows over all of the mesh: bfloat16, dropout on, AdamW.

    generator: of the random bits, "threefry2x32" or "rbg".
    """
    from transformers import BertConfig, FlaxBertForPreTraining

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
    )
    model = FlaxBertForPreTraining(config, dtype=jnp.bfloat16, _do_init=False)
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def loss_of(params: Any, batch: dict, key: jax.Array) -> jax.Array:
        words, pairs = model(
            batch["input_ids"],
            batch["attention_mask"],
            batch["token_type_ids"],
            params=params,
            dropout_rng=key,
            train=True,
            return_dict=False,
        )
        masked = batch["labels"] != NOT_MASKED
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        of_words = cross_entropy(words.astype(jnp.float32), jnp.where(masked, batch["labels"], 0))
        of_pairs = cross_entropy(pairs.astype(jnp.float32), batch["next_sentence_label"])
        return (of_words * masked).sum() / masked.sum() + of_pairs.mean()

    def step(state: Any, batch: dict) -> tuple:
        params, moments, key = state
        key, now = jax.random.split(key)
        loss, gradients = jax.value_and_grad(loss_of)(params, batch, now)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments, key), loss

    def start() -> tuple:
        params = model.init_weights(jax.random.key(0), (1, seq_length))
        return params, optimizer.init(params), jax.random.key(0, impl=generator)

    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(mesh.axis_names))
    state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), jax.eval_shape(start)
    )
    shapes = dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids", "labels"), (rows, seq_length)
    )
    batch = {
        name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=split)
        for name, shape in (shapes | {"next_sentence_label": (rows,)}).items()
    }
    return jax.jit(step, donate_argnums=0, out_shardings=(whole, whole)).lower(state, batch)
