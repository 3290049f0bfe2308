"""The operations of a training step against its traced program."""

import dataclasses

import jax
import numpy as np
import pytest
from corpus import small_store, two_phases
from flax import nnx
from jax.extend.core import jaxprs_in_params

from bert_jax.config.schema import Config
from bert_jax.metrics import flops
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import declare


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    return two_phases(small_store(tmp_path_factory.mktemp("store")), (60, 40))


def products(jaxpr) -> float:
    """FLOPs of the matrix multiplications in a jaxpr, loops unrolled."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), (batch, _) = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            del batch
            total += (
                2.0 * np.prod(equation.outvars[0].aval.shape) * np.prod([left[i] for i in contract])
            )
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in jaxprs_in_params(equation.params):
            total += times * products(inner)
    return total


@pytest.mark.parametrize("pairing", ["nsp", "single"])
@pytest.mark.parametrize("boundary", [False, True])
@pytest.mark.parametrize(
    "rows", [{}, {"examples_per_row": 3, "row_length": 64}, {"micro_batches": 2}]
)
def test_the_operations_of_a_step_are_those_of_its_program(config, pairing, boundary, rows):
    """Three times the products in the forward pass, as traced."""
    data = dataclasses.replace(config.data, pairing=pairing, masking="span", span_boundary=boundary)
    model = dataclasses.replace(config.model, pad_vocab_to_multiple_of=1)
    phase = dataclasses.replace(config.phases[1], **rows)
    config = dataclasses.replace(config, data=data, model=model, phases=(phase,))
    assert flops.step_flops(config, phase) == pytest.approx(traced_flops(config), rel=1e-3)


@pytest.mark.parametrize(
    "form",
    [
        {
            **{"position": "rotary", "norm_position": "pre", "gated_mlp": True},
            **{"local_attention": 16, "num_hidden_layers": 5, "linear_bias": False},
            **{"hidden_size": 64, "num_attention_heads": 8},
        },
        {"num_hidden_groups": 1, "embedding_size": 24},
    ],
    ids=["modern", "shared"],
)
def test_the_operations_of_other_layers_are_those_of_their_program(config, form):
    """Rows of 1,024 tokens, of which a local layer sees blocks. What rotates queries and keys is
    not counted: 1 % here."""
    config = with_model(config, pad_vocab_to_multiple_of=1, max_position_embeddings=1024, **form)
    phase = dataclasses.replace(config.phases[1], seq_length=1024, max_predictions=154)
    compute = dataclasses.replace(config.compute, attention="xla")
    config = dataclasses.replace(config, phases=(phase,), compute=compute)
    counted = flops.step_flops(config, phase)
    assert counted == pytest.approx(traced_flops(config), rel=2e-2)
    whole = with_model(config, local_attention=0)
    assert (flops.step_flops(whole, phase) > 1.2 * counted) == ("local_attention" in form)


def with_model(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **changes))


def traced_flops(config: Config) -> float:
    """Three times the products in the forward pass of the only phase."""
    (phase,) = config.phases
    b, s, p = phase.batch_size, phase.row_tokens, phase.row_predictions
    names = dict.fromkeys(("input_ids", "token_type_ids", "example_ids", "position_ids"), s)
    names |= dict.fromkeys(("masked_positions", "span_left", "span_right", "span_offsets"), p)
    names["cls_positions"] = phase.examples_per_row
    batch = {k: jax.ShapeDtypeStruct((b, n), np.int32) for k, n in names.items()}
    graph, abstract = declare(config.model, config.compute, chosen(config.data))
    traced = jax.make_jaxpr(lambda params, batch: nnx.merge(graph, params)(batch))(
        nnx.to_pure_dict(abstract), batch
    )
    return 3 * products(traced.jaxpr)


@pytest.mark.parametrize("positions", ["all", "masked"])
def test_states_are_brought_to_the_teachers_width_where_they_are_compared(config, positions):
    phase, width = config.phases[1], 48
    config = config.replace("distillation.positions", positions)
    compared = phase.row_tokens if positions == "all" else phase.row_predictions
    wider = with_model(config, teacher_width=width)
    counted, same = (flops.step_flops(one, phase, config.model) for one in (wider, config))
    added = 3 * 2 * phase.batch_size * compared * config.model.hidden_size * width
    assert counted - same == pytest.approx(added)
