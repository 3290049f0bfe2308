"""Initial values near the identity."""

import dataclasses

import jax
import numpy as np
import pytest
from small import COMPUTE, model_config

from bert_jax.checkpoint.fingerprint import by_path
from bert_jax.config.starts import NearIdentityConfig
from bert_jax.objectives.pretraining_model import init_params


@pytest.mark.parametrize("initializer", ["random", "positional_heads"])
def test_head_and_outputs_change_and_nothing_else(initializer) -> None:
    def values(**near: object) -> dict[str, np.ndarray]:
        start = NearIdentityConfig(**near)
        config = dataclasses.replace(model_config(), initializer=initializer, near_identity=start)
        return by_path(init_params(config, COMPUTE, ("mlm",), jax.random.key(0)))

    random, near = values(), values(head=True, feed_forward=0.125, attention=0.5)
    expected = dict(random)
    expected["mlm/dense/kernel"] = np.eye(len(random["mlm/dense/kernel"]))
    expected["encoder/layers/mlp/down/kernel"] = random["encoder/layers/mlp/down/kernel"] / 8
    name = "encoder/layers/attention/output/kernel"
    expected[name] = random[name] / 2
    for name in random:
        np.testing.assert_array_equal(near[name], expected[name], err_msg=name)
