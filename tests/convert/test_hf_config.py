"""What a transformers config.json may leave out."""

import json

import pytest

from bert_jax.convert.hf_config import from_config_json
from bert_jax.errors import UserError

REQUIRED = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    config = from_config_json(REQUIRED, "config.json")
    assert {name: getattr(config, name) for name in REQUIRED} == REQUIRED
    assert config.hidden_act == "gelu"
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert (config.type_vocab_size, config.initializer_range) == (2, 0.02)
    assert config.layer_norm_eps == 1e-12


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "albert"])
def test_missing_keys_are_read_as_transformers_reads_them(kind: str) -> None:
    from transformers import AutoConfig

    given = REQUIRED | {"model_type": kind}
    theirs = json.loads(AutoConfig.for_model(**given).to_json_string(use_diff=False))
    assert from_config_json(theirs, "config.json") == from_config_json(given, "config.json")


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_size_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"config.json: no {name}; is this"):
        from_config_json({key: REQUIRED[key] for key in REQUIRED if key != name}, "config.json")


def test_without_its_type_a_model_of_another_class_is_named() -> None:
    """Its weights would be looked for by BERT's names."""
    for classes in (["BertForMaskedLM"], [], None):
        from_config_json(REQUIRED | {"architectures": classes}, "config.json")
    given = REQUIRED | {"architectures": ["ModernBertForMaskedLM"]}
    with pytest.raises(UserError, match=r"^config.json: model_type is missing, and .* modernbert"):
        from_config_json(given, "config.json")


@pytest.mark.parametrize("kind", ["bert", "roberta-prelayernorm"])
def test_relative_positions_are_refused(kind: str) -> None:
    values = REQUIRED | {"model_type": kind, "position_embedding_type": "relative_key"}
    with pytest.raises(UserError, match=r"position_embedding_type='relative_key' is not supported"):
        from_config_json(values, "config.json")


def test_an_older_name_of_the_global_base_must_agree() -> None:
    """`rope_theta` is that of transformers 4; 5 does not read it."""
    given = REQUIRED | {"model_type": "modernbert"}
    same = given | {"global_rope_theta": 5e5, "rope_theta": 5e5}
    assert from_config_json(same, "config.json").global_rope_theta == 5e5
    with pytest.raises(UserError, match=r"rope_theta=500000\.0 differs from global_rope_theta"):
        from_config_json(given | {"rope_theta": 5e5}, "config.json")


def test_values_of_heads_that_are_null_or_another_computation() -> None:
    given = REQUIRED | {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    labels = from_config_json(given | {"num_labels": None}, "config.json").head.labels  # type: ignore[attr-defined]
    assert labels == ("LABEL_0", "LABEL_1")
    electra = REQUIRED | {"model_type": "electra", "architectures": ["ElectraForMultipleChoice"]}
    from_config_json(electra | {"summary_first_dropout": 0}, "config.json")
    with pytest.raises(UserError, match=r"summary_first_dropout=0\.3"):
        from_config_json(electra | {"summary_first_dropout": 0.3}, "config.json")
