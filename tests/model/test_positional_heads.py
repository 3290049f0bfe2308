"""The initializer whose heads attend to a neighbour: where attention lies before the first step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.starts import PositionalHeadsConfig
from bert_jax.errors import UserError
from bert_jax.model import positional_heads
from bert_jax.model.layers import Keys
from bert_jax.objectives.encoder_with_heads import PretrainingModel
from bert_jax.objectives.known_objectives import BERT_FOR_PRETRAINING
from bert_jax.objectives.pretraining_model import init_params

LENGTH = 64
PLAIN = ComputeConfig.plain()


def model(hidden: int = 128, heads: int = 2, **changes: object) -> ModelConfig:
    return ModelConfig(
        **{
            "vocab_size": 512,
            "hidden_size": hidden,
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "intermediate_size": 64,
            "max_position_embeddings": 128,
            "initializer_range": hidden**-0.5,
            "initializer": "positional_heads",
            **changes,
        }
    )


def initial(config: ModelConfig) -> dict:
    return init_params(config, PLAIN, BERT_FOR_PRETRAINING, jax.random.key(3))


def first_attention(config: ModelConfig) -> np.ndarray:
    """Attention probabilities [A, S, S] of the first layer for random words, before training."""
    encoder = PretrainingModel(config, PLAIN, BERT_FOR_PRETRAINING, Keys(jax.random.key(0))).encoder
    params = initial(config)["encoder"]
    words = np.random.default_rng(0).integers(5, config.vocab_size, LENGTH)
    table = params["embeddings"]
    x = table["word"][words] + table["type"][:1] + table["position"][:LENGTH]
    x = encoder.embeddings.norm(x)
    query, key = jnp.einsum("sh,hpad->pasd", x, params["layers"]["attention"]["qkv"]["kernel"][0])[
        :2
    ]
    return np.asarray(jax.nn.softmax(jnp.einsum("aid,ajd->aij", query, key) / config.head_dim**0.5))


def test_what_no_head_reads_of_the_table_can_be_left_out() -> None:
    whole, part = (
        positional_heads.position_table(
            model(positional_heads=PositionalHeadsConfig(unread=unread))
        )
        for unread in (1.0, 0.0)
    )
    read = part.any(axis=0)
    assert read.sum() == 64  # of 128 dimensions: each head has 32 pairs
    np.testing.assert_array_equal(part[:, read], whole[:, read])


def share_at(probabilities: np.ndarray, offset: int) -> float:
    """The mean attention [S, S] on the token `offset` places away, where there is one."""
    return float(np.diagonal(probabilities, offset).mean())


@pytest.mark.parametrize("unread", [1.0, 0.0])
@pytest.mark.parametrize(
    ("hidden", "heads"),
    [
        (128, 2),
        pytest.param(384, 12, marks=pytest.mark.slow),
        pytest.param(130, 2, marks=pytest.mark.slow),
    ],
)
def test_each_head_of_the_first_layer_attends_to_its_neighbour(
    hidden: int, heads: int, unread: float
) -> None:
    start = PositionalHeadsConfig(unread=unread)
    attention = first_attention(model(hidden, heads, positional_heads=start))
    for head, offset in enumerate(model(hidden, heads).head_offsets):
        assert share_at(attention[head], offset) > 0.3, offset
        others = {o: share_at(attention[head], o) for o in range(-8, 9)}
        assert max(others, key=others.get) == offset


def test_published_heads_attend_to_no_neighbour() -> None:
    attention = first_attention(model(initializer="published"))
    assert max(share_at(head, offset) for head in attention for offset in (-1, 1)) < 0.05


def test_offsets_alternate() -> None:
    assert model(320, 5).head_offsets == (-1, 1, -2, 2, -3)


def test_only_the_position_table_and_queries_and_keys_of_the_first_layer_differ() -> None:
    ours, published = initial(model()), initial(model(initializer="published"))
    differ = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for (path, one), other in zip(
            jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(published), strict=True
        )
        if not np.array_equal(one, other)
    }
    kernel = "encoder.layers.attention.qkv.kernel"
    assert differ == {"encoder.embeddings.position", kernel}
    ours, published = (
        x["encoder"]["layers"]["attention"]["qkv"]["kernel"] for x in (ours, published)
    )
    assert np.array_equal(ours[1:], published[1:])  # the other layers
    assert np.array_equal(ours[:, :, 2], published[:, :, 2])  # values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 512, "heads": 256}, "offsets up to 128.*max_position_embeddings=128"),
        ({"hidden": 8, "heads": 8}, "at least 2 dimensions a head"),
        ({"position": "rotary"}, 'position="rotary" does not have'),
    ],
)
def test_what_cannot_be_guided_is_refused_in_one_line(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        model(**changes)
    assert len(str(error.value).splitlines()) == 1
