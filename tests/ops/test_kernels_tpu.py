"""The TPU kernel in a whole training step, through the real compiler; needs libtpu, but no TPU.

As test_slices.py, which says where the copy of libtpu comes from: this file, run as a
program, compiles; the tests judge what it prints.
"""

import json
import re
from typing import Any

import pytest
from tpu_compiler import answer_of, needs_libtpu

SLICES = ["v5e:2x2", "v6e:2x2"]
LENGTH = 512

pytestmark = [
    pytest.mark.slow,
    needs_libtpu,
]


def compile_step(topology: str, dropout: float = 0.0) -> dict[str, Any]:
    """What a step of one layer, two heads of 64, 8 rows a chip, looks like when compiled."""
    import jax
    import numpy as np
    from jax.experimental.topologies import get_topology_desc
    from small_step import CORPUS, small

    from bert_jax.ops.attention import dispatch
    from bert_jax.parallel.mesh import make_mesh
    from bert_jax.training.step import make_step_functions

    config = small(
        "mlm",
        model={
            "num_hidden_layers": 1, "hidden_size": 128, "num_attention_heads": 2,
            "max_position_embeddings": LENGTH, "attention_probs_dropout_prob": dropout,
        },
        mesh={"data": -1},
        phase={"batch_size": 32, "seq_length": LENGTH, "max_predictions": 77},
        compute={"attention": "auto", "dtype": "bfloat16"},
    )  # fmt: skip
    devices = get_topology_desc(topology, platform="tpu").devices
    mesh = make_mesh(config.mesh, devices)
    tokens = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    rows = dict.fromkeys(tokens, np.zeros((1, LENGTH), np.int32))
    rows |= dict.fromkeys(("masked_positions", "masked_labels"), np.zeros((1, 77), np.int32))
    rows |= {"masked_weights": np.zeros((1, 77), np.float32)}
    with jax.set_mesh(mesh):
        compiled = make_step_functions(config, mesh, CORPUS).compile_train(rows, config.phases[0])
    text = compiled.as_text()
    return {
        "form": dispatch.resolve(config, mesh).attention,
        "kernels": len(re.findall(r'custom_call_target="tpu_custom_call"', text)),
        "scores": len(re.findall(rf"\[[\d,]*{LENGTH},{LENGTH}\]", text)),
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
    }


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    return answer_of(__file__)


@pytest.mark.parametrize("topology", SLICES)
def test_long_rows_take_the_kernel_and_no_scores_reach_memory(
    topology: str, compiled: dict
) -> None:
    assert compiled[topology]["form"] == "auto"
    assert compiled[topology]["kernels"] == 2, "one forward, one backward"
    assert compiled[topology]["scores"] == 0


def test_dropped_probabilities_take_the_plain_form(compiled: dict) -> None:
    kernel, dropping = compiled["v5e:2x2"], compiled["dropping"]
    assert dropping["kernels"] == 0
    assert dropping["scores"] > 0, "so the test above can fail"
    assert kernel["temporaries"] <= dropping["temporaries"]


if __name__ == "__main__":
    found: dict[str, dict] = {topology: compile_step(topology) for topology in SLICES}
    found["dropping"] = compile_step(SLICES[0], dropout=0.1)
    print(json.dumps(found))
