"""Names of tensors in the weights of others: older ones, and those that are in the way."""

import numpy as np
import pytest
from exported import random_params
from layout_models import layout_config, task_params
from small import model_config

from bert_jax.convert import weights
from bert_jax.errors import UserError


@pytest.mark.parametrize(
    "stray",
    ["pooler.dense.weight", "encoder.layer.0.output.dense.bias", "embeddings.LayerNorm.beta"],
)
def test_a_tensor_beside_the_one_of_its_current_name_is_not_read(stray):
    """As in transformers, wherever it stands in the file; it is named as left out."""
    config = model_config()
    tensors = weights.to_transformers(random_params(config), config)
    now = f"bert.{stray}".replace("beta", "bias")
    for found in ({**tensors, stray: tensors[now] + 7}, {stray: tensors[now] + 7, **tensors}):
        same = weights.to_transformers(weights.from_transformers(found, config), config)
        assert (same[now] == tensors[now]).all()
        assert weights.leftover(found, config) == [stray]


def test_two_older_names_of_one_tensor_are_one_line():
    config = model_config()
    tensors = weights.to_transformers(random_params(config), config)
    scale = tensors.pop("bert.embeddings.LayerNorm.weight")
    found = {**tensors, "embeddings.LayerNorm.gamma": scale,
             "bert.embeddings.LayerNorm.gamma": scale + 1}  # fmt: skip
    message = (
        "the weights have embeddings.LayerNorm.gamma and bert.embeddings.LayerNorm.gamma, both "
        "bert.embeddings.LayerNorm.weight; remove one"
    )
    with pytest.raises(UserError, match=message):
        weights.from_transformers(found, config)


def test_another_table_of_angles_is_one_line():
    config = layout_config("roformer")
    tensors = weights.to_transformers(task_params(config), config)
    (name,) = (name for name in tensors if "embed_positions" in name)
    half = {**tensors, name: tensors[name].astype(np.float16)}
    weights.from_transformers(half, config)
    positions = np.arange(len(tensors[name]))[:, None] * 0.5
    scaled = np.concatenate([np.sin(positions), np.cos(positions)], 1).astype(np.float32)
    columns = np.resize(scaled, tensors[name].shape)
    for other in (columns, tensors[name][:-1]):
        with pytest.raises(UserError, match=f"{name} is not the table of sines and cosines that"):
            weights.from_transformers({**tensors, name: other}, config)
