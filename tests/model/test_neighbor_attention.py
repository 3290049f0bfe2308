"""The attention on neighbouring tokens, against a plain computation example by example."""

import jax
import numpy as np
import pytest

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.metrics.neighbor_attention import by_layer, neighbor_metrics
from bert_jax.model.layers import Keys
from bert_jax.model.neighbor_attention import neighbor_attention
from bert_jax.objectives.encoder_with_heads import PretrainingModel
from bert_jax.objectives.pretraining_model import init_params

PLAIN = ComputeConfig.plain()
LENGTHS = ((5, 4), (7,))  # of the examples of each row
WIDTH = 10


def model(**changes: object) -> ModelConfig:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    return ModelConfig(
        vocab_size=50, intermediate_size=64, max_position_embeddings=16, **sizes | changes
    )


def packed_batch() -> dict[str, np.ndarray]:
    """Packed rows with padding at the end."""
    names = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    batch = {name: np.zeros((len(LENGTHS), WIDTH), np.int32) for name in names}
    rng = np.random.default_rng(0)
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for number, length in enumerate(lengths, 1):
            place = row, slice(begin, begin + length)
            batch["input_ids"][place] = rng.integers(1, 50, length)
            batch["example_ids"][place] = number
            batch["position_ids"][place] = np.arange(length)
            begin += length
    return batch


def encoder_of(config: ModelConfig):
    from flax import nnx

    graph, _ = nnx.split(PretrainingModel(config, PLAIN, ("mlm",), Keys(jax.random.key(1))))
    params = init_params(config, PLAIN, ("mlm",), jax.random.key(1))
    return nnx.merge(graph, params).encoder


def plain_sums(config: ModelConfig, batch: dict[str, np.ndarray]) -> tuple[list, list, int]:
    """Left and right sums of the first layer, one example after the other."""
    encoder = encoder_of(config)
    layer = jax.tree.map(lambda leaf: leaf[0], encoder.layers)
    left, right, count = [0.0, 0.0], [0.0, 0.0], 0
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for length in lengths:
            place = slice(row, row + 1), slice(begin, begin + length)
            x, kinds = encoder.embed(
                *(batch[n][place] for n in ("input_ids", "token_type_ids", "position_ids"))
            )
            inputs = layer.attention.norm(x) if config.norm_position == "pre" else x
            query, key, _ = layer.attention.queries_keys_values(inputs, kinds[0].rotation)
            for head in range(2):
                scores = np.asarray(query[0, :, head] @ key[0, :, head].T) / 4.0  # sqrt(16)
                share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
                left[head] += np.diagonal(share, -1).sum()
                right[head] += np.diagonal(share, 1).sum()
            count += length - 1
            begin += length
    return left, right, count


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"initializer": "positional_heads"}, {"position": "rotary"}, {"norm_position": "pre"}],
    ids=lambda changes: "-".join(changes) or "published",
)
def test_sums_are_those_of_separate_examples(changes: dict) -> None:
    config, batch = model(**changes), packed_batch()
    sums = neighbor_attention(encoder_of(config), batch)
    left, right, count = plain_sums(config, batch)
    assert float(sums["count"]) == count == 4 + 3 + 6
    np.testing.assert_allclose(sums["left"][0], left, rtol=1e-5)
    np.testing.assert_allclose(sums["right"][0], right, rtol=1e-5)


def test_metrics_name_layer_head_and_side() -> None:
    sums = {"left": np.array([[1.0, 2.0]]), "right": np.array([[4.0, 3.0]]), "count": 10.0}
    metrics = neighbor_metrics(sums)
    assert metrics["attention/layer_0/head_1/left"] == 0.2
    assert metrics["attention/layer_0/head_0/right"] == 0.4
    assert by_layer({**metrics, "mlm/loss": 5.0}) == {0: 0.4}


def test_attention_that_is_not_finite_is_not_shown_as_none() -> None:
    nan = {"attention/layer_0/head_0/left": np.nan, "attention/layer_1/head_0/left": np.nan}
    assert by_layer({**nan, "attention/layer_1/head_1/left": 0.5}) == {1: 0.5}
