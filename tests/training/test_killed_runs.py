"""Runs of two networks that are killed: of a student with its teacher, and of replaced tokens."""

from pathlib import Path

import pytest
from corpus import small_config, small_store
from processes import assert_a_kill_costs_no_bits, deep_config

from bert_jax.training import loop

PAIRLESS = {"data.pairing": "single", "optimizer.ema_decay": 0.9}


@pytest.mark.nightly
@pytest.mark.processes
def test_a_kill_costs_a_student_and_its_teacher_no_bits(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    loop.pretrain(small_config(store), tmp_path / "teacher")
    values = {**PAIRLESS, "teacher": f"{tmp_path}/teacher@12"}
    assert_a_kill_costs_no_bits(deep_config(store).replace(values), tmp_path)


@pytest.mark.nightly
@pytest.mark.processes
def test_a_kill_costs_generator_and_discriminator_no_bits(tmp_path: Path) -> None:
    values = {
        **PAIRLESS, "data.masking": "with_replacement", "data.replaced_tokens": True,
        "data.mask_share": 0.85, "data.random_share": 0.0, "model.layout": "electra",
        "model.embedding_size": 32, "model.generator.hidden_size": 16,
        "model.generator.num_attention_heads": 1, "model.generator.intermediate_size": 32,
    }  # fmt: skip
    assert_a_kill_costs_no_bits(
        deep_config(small_store(tmp_path / "store")).replace(values), tmp_path
    )
