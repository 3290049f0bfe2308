"""What config.json says of ModernBERT's layers: two forms, read as in transformers, or refused."""

import dataclasses
import json
import logging

import jax
import numpy as np
import pytest
from layout_models import layout_config, task_config, task_params
from small import COMPUTE

from bert_jax.convert import weights
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.errors import UserError
from bert_jax.objectives.pretraining_model import init_params

CONFIG = layout_config("modernbert", num_hidden_layers=5)
OLD = json.loads(json.dumps(to_config_json(CONFIG, pad_token_id=0, heads={"mlm"})))
KINDS = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]
PARAMETERS = {
    "full_attention": {"rope_theta": 160_000.0, "rope_type": "default"},
    "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
}
OF_OLD = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
# As transformers 5 writes it.
NEW = {key: value for key, value in OLD.items() if key not in OF_OLD}
NEW |= {"layer_types": KINDS, "rope_parameters": PARAMETERS}


def read(values: dict):
    return from_config_json(values, "config.json")


def test_the_form_of_transformers_4_is_written_and_both_are_read():
    assert OLD.keys() >= set(OF_OLD)
    assert not OLD.keys() & {"layer_types", "rope_parameters", "sliding_window"}
    assert read(OLD) == read(NEW) == read(OLD | NEW) == CONFIG
    assert read(NEW | {"sliding_window": 3, "rope_scaling": None}) == CONFIG
    alone = {key: value for key, value in NEW.items() if key != "local_attention"}
    assert read(alone | {"sliding_window": 3}) == CONFIG


def test_no_base_of_the_local_angles_is_that_of_the_global_ones():
    assert read(OLD | {"local_rope_theta": None}).local_rope_theta == 160_000.0


def test_missing_keys_have_the_defaults_of_transformers():
    omitted = (*OF_OLD, "local_attention", "norm_eps", "norm_bias", "classifier_pooling")
    found = read({key: value for key, value in OLD.items() if key not in omitted})
    assert (found.global_rope_theta, found.local_rope_theta) == (160_000.0, 10_000.0)
    assert (found.local_attention, found.global_attn_every_n_layers) == (128, 3)
    assert (found.layer_norm_eps, found.norm_bias, found.classifier_pooling) == (1e-5, False, "cls")


@pytest.mark.parametrize(
    ("layers", "kinds", "every"),
    [
        (1, "G", 3),
        (2, "GL", 3),
        (2, "GG", 1),
        (7, "GLLGLLG", 3),
        (7, "GGGGGGG", 1),
        (6, "GLGLGL", 2),
        (6, "GLLLLL", 6),
    ],
)
def test_a_list_of_kinds_is_every_nth_layer(layers, kinds, every):
    listed = [{"G": "full_attention", "L": "sliding_attention"}[kind] for kind in kinds]
    found = read(NEW | {"num_hidden_layers": layers, "layer_types": listed})
    assert [found.is_local(layer) for layer in range(layers)] == [kind == "L" for kind in kinds]
    if every == 1:  # a base of local angles would have no effect, and a run would refuse it
        assert (found.local_attention, found.local_rope_theta) == (0, 10_000.0)
    else:
        assert (found.local_attention, found.global_attn_every_n_layers) == (6, every)
    again = to_config_json(found, pad_token_id=0, heads={"mlm"})
    assert again["global_attn_every_n_layers"] == every
    assert read(again) == found


@pytest.mark.parametrize("named", ["global", "local"])
def test_a_null_theta_beside_a_list_by_kind_says_nothing(named):
    """As in transformers 5, whether the other one is given or not."""
    other = {"global": "local", "local": "global"}[named]
    for given in ({}, {f"{other}_rope_theta": read(NEW).__dict__[f"{other}_rope_theta"]}):
        assert read(NEW | given | {f"{named}_rope_theta": None}) == read(NEW)


@pytest.mark.parametrize(
    ("values", "change", "says"),
    [
        (NEW, {"layer_types": KINDS[::-1][1:] + KINDS[:1]}, "layer_types=.* is not supported; of"),
        (NEW, {"layer_types": KINDS[:4]}, "layer_types=.* 0, n, 2n, … should be"),
        (NEW, {"layer_types": ["full_attention", 7, *KINDS[2:]]}, "layer_types=.* is not"),
        (NEW, {"layer_types": "full_attention"}, "layer_types='full_attention' is not supported"),
        (NEW, {"num_hidden_layers": "5"}, "num_hidden_layers='5' should be int"),
        (NEW, {"num_hidden_layers": True}, "num_hidden_layers=True should be int"),
        (NEW, {"layer_types": 5}, "layer_types=5 is not supported"),
        (NEW, {"global_attn_every_n_layers": 3}, "layer_types=.*, n the global_attn_every"),
        (OLD, {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers=0 should be from 1"),
        (OLD, {"global_attn_every_n_layers": "3"}, "global_attn_every_n_layers='3' should be int"),
        (OLD, {"local_attention": 0}, "local_attention=0 should be from 2"),
        (OLD, {"local_attention": 1}, "local_attention=1 should be from 2"),
        (OLD, {"local_attention": None}, "local_attention=None should be int"),
        (OLD, {"sliding_window": 6}, "sliding_window=6 is not half of local_attention=6"),
        (OLD, {"global_rope_theta": None}, "global_rope_theta=None should be float"),
        (OLD, {"local_rope_theta": 0}, "local_rope_theta=0 should be from 1"),
        (OLD, {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling=.* angles that are scaled"),
        (NEW, {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters=.* should have full_att"),
        (NEW, {"rope_parameters": 7}, "rope_parameters=7 should have full_attention"),
        (
            NEW,
            {"rope_parameters": PARAMETERS | {"full_attention": {"rope_type": "linear"}}},
            "rope_parameters.full_attention=.* only plain angles",
        ),
        (
            NEW,
            {"rope_parameters": PARAMETERS | {"full_attention": {"partial_rotary_factor": 0.5}}},
            "rope_parameters.full_attention=.* only plain angles",
        ),
        (NEW, {"rope_parameters": {"full_attention": 7}}, "full_attention=7: only"),
        (NEW, {"local_rope_theta": 10.0}, "local_rope_theta=10.0 differs from rope_par"),
        (OLD, {"attention_bias": True}, "attention_bias=True, mlp_bias=False, "),
        (OLD, {"norm_bias": "no"}, "norm_bias='no' should be bool"),
        (OLD, {"decoder_bias": False}, "decoder_bias=False is not supported; only True"),
        (OLD, {"embedding_dropout": 0.1}, "embedding_dropout=0.1 is not supported; only 0.0"),
        (OLD, {"attention_dropout": 0.1}, "attention_dropout=0.1 is not supported; only 0.0"),
        (OLD, {"mlp_dropout": 0.1}, "mlp_dropout=0.1 is not supported; only 0.0"),
        (OLD, {"hidden_activation": "silu"}, "hidden_activation='silu' is not supported; valid"),
        (OLD, {"classifier_activation": "silu"}, "classifier_activation='silu' is not that of"),
        (OLD, {"classifier_activation": ["gelu"]}, r"classifier_activation=\['gelu'\] is"),
        (OLD, {"classifier_pooling": "max"}, "classifier_pooling='max'.*cls"),
        (OLD, {"hidden_size": 9, "num_attention_heads": 3}, "rotates pairs of dimensions"),
        (OLD, {"hidden_size": None}, "no hidden_size"),
    ],
)  # fmt: skip
def test_what_our_models_do_not_compute_is_one_line(values, change, says):
    with pytest.raises(UserError, match=rf"^config.json: [^\n]*{says}[^\n]*$"):
        read(values | change)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gated_mlp": False}, "gated_mlp=False: ModernBertModel has True"),
        ({"first_attention_norm": True}, "first_attention_norm=True: ModernBertModel has False"),
        ({"num_hidden_groups": 1}, "num_hidden_groups=1: ModernBertModel has 0"),
        ({"type_vocab_size": 2}, "type_vocab_size=2: ModernBertModel has 0"),
        ({"layout": "bert"}, 'no class with layout="bert", position="rotary", norm_position="pre"'),
        ({"position": "learned", "global_rope_theta": 1e4, "local_rope_theta": 1e4}, "no class"),
    ],
)
def test_a_form_that_no_class_computes_is_refused(change, says):
    config = dataclasses.replace(layout_config("modernbert"), **change)
    with pytest.raises(UserError, match=says):
        to_config_json(config, pad_token_id=0)


@pytest.mark.parametrize(
    "change", [{"norm_bias": False}, {"gated_mlp": True}, {"local_attention": 8},
               {"classifier_pooling": "mean"}, {"embedding_size": 8}],
)  # fmt: skip
def test_settings_of_other_layouts_are_refused(change):
    ((name, value),) = change.items()
    with pytest.raises(UserError, match=f"config.model.{name}={value}: BertModel has"):
        to_config_json(layout_config("bert", **change), pad_token_id=0)


def test_dropout_is_only_of_training():
    """No rate of its class computes what ours do, and a trained model has none."""
    config = layout_config("modernbert", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)
    values = to_config_json(config, pad_token_id=0, heads={"mlm"})
    assert {values[f"{name}_dropout"] for name in ("embedding", "attention", "mlp")} == {0.0}
    assert read(values) == layout_config("modernbert")


@pytest.mark.parametrize("biases", [False, True])
def test_there_and_back_is_bit_exact(biases):
    config = layout_config("modernbert", linear_bias=biases, norm_bias=biases)
    params = task_params(config)
    tensors = weights.to_transformers(params, config)
    assert weights.leftover(tensors, config) == []
    back = weights.from_transformers(tensors, config)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    assert any(name.endswith("attn.Wqkv.bias") for name in tensors) == biases


def test_the_first_layer_has_no_norm_that_anything_reads():
    config = layout_config("modernbert")
    params = task_params(config)
    tensors = weights.to_transformers(params, config)
    assert "model.layers.0.attn_norm.weight" not in tensors
    assert "model.layers.1.attn_norm.weight" in tensors
    scale_LxH = params["encoder"]["layers"]["attention"]["norm"]["scale"]
    np.testing.assert_array_equal(scale_LxH[0], 1)
    assert not (scale_LxH[1:] == 1).all(-1).any()


def test_a_model_without_a_head_has_names_without_prefix():
    config = layout_config("modernbert")
    params = task_params(config)
    tensors = weights.to_transformers(params, config, groups={"encoder"})
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert weights.leftover(bare, config) == []
    assert weights.present(bare, config) == {"encoder"}
    back = weights.from_transformers(bare, config)
    jax.tree.map(np.testing.assert_array_equal, back["encoder"], params["encoder"])


def test_a_classifier_reads_what_config_json_says():
    config = task_config("modernbert", "single_label_classification", classifier_pooling="mean")
    values = to_config_json(config, pad_token_id=0, heads={"classifier"})
    assert values["classifier_pooling"] == "mean"
    assert config.head.pooling == read(values).head.pooling == "mean"
    tagger = task_config("modernbert", "token_classification", classifier_pooling="mean")
    assert tagger.head.pooling == "cls"


def test_the_keys_of_released_models_are_known(caplog, monkeypatch):
    """As 4.47 wrote ModernBERT's, and what mmBERT's has besides."""
    released = {
        "attention_bias": False, "bos_token_id": 50281, "classifier_pooling": "mean",
        "cls_token_id": 50281, "deterministic_flash_attn": False, "eos_token_id": 50282,
        "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "vocab_size": 50368,
        "gradient_checkpointing": False, "initializer_cutoff_factor": 2.0, "layer_norm_eps": 1e-05,
        "local_attention": 128, "local_rope_theta": 10000.0, "pad_token_id": 50283,
        "position_embedding_type": "absolute", "sep_token_id": 50282, "torch_dtype": "float32",
        "transformers_version": "4.47.0.dev0", "reference_compile": None,
        "repad_logits_with_grad": False, "sparse_pred_ignore_index": -100,
    }  # fmt: skip
    monkeypatch.setattr(logging.getLogger("bert_jax"), "propagate", True)
    with caplog.at_level(logging.INFO, "bert_jax"):
        first = from_config_json(OLD | released, "released.json")
        second = from_config_json(
            OLD | released | {"position_embedding_type": "sans_pos"}, "other.json"
        )
    assert not caplog.records
    assert first == second
    assert first.classifier_pooling == "mean"
    again = to_config_json(first, pad_token_id=50283, heads={"mlm"}, source=released)
    assert {key: again[key] for key in released if key in again and "dtype" not in key} == {
        key: released[key] for key in released if key in again and "dtype" not in key
    }
    assert again["cls_token_id"] == 50281


@pytest.mark.parametrize("layout", ["modernbert", "albert"])
def test_initial_values_of_a_head_are_those_of_its_class(layout):
    """Normal, cut at two standard deviations, which leaves 0.88 of one."""
    config = task_config(layout, "token_classification", hidden_size=384, num_attention_heads=6)
    params = init_params(config, COMPUTE, ("token_classification",), jax.random.key(0))["tagger"]
    wanted = {"output": config.initializer_range}
    if layout == "modernbert":
        wanted = {"output": 384**-0.5, "dense": 0.02 / (2 * config.num_hidden_layers) ** 0.5}
    found = {name: np.std(params[name]["kernel"]) / 0.88 for name in wanted}
    assert found == pytest.approx(wanted, rel=0.05)
