"""The peer of benchmarks/tpu_compile.py: the training step of transformers' FlaxBertForPreTraining.

Needs transformers 4.57, the last release with Flax models, which still works with jax 0.10 and flax
0.12; `make .venv/peer` installs it separately, because the project itself uses a later release. The
step is that of examples/flax/language-modeling/run_mlm_flax.py in that release, in its fastest
variant today: one jit over a mesh instead of pmap, a donated state, and a loss with integer labels.
That is the strongest peer: on base at 128 with 64 rows per v5e chip, it takes 92.5 million
estimated cycles; one-hot labels (as in that script) take 96.0, and a log-softmax with the label's
entry selected takes 98.8.
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
    """Lowers the step for a batch of `rows` rows over the mesh: bfloat16, dropout on, AdamW.

    generator: PRNG implementation, "threefry2x32" or "rbg".
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

    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(mesh.axis_names))
    state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), jax.eval_shape(start)
    )
    shapes = dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids", "labels"), (rows, seq_length)
    )
    batch = {
        name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=split)
        for name, shape in (shapes | {"next_sentence_label": (rows,)}).items()
    }
    return jax.jit(step, donate_argnums=0, out_shardings=(replicated, replicated)).lower(
        state, batch
    )
