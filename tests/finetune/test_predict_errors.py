"""What `bert-jax predict` says of a model or a file that it cannot use: one line."""

import dataclasses
from pathlib import Path

import pytest
from exported import base_config, random_params

from bert_jax import cli
from bert_jax.convert.publish.export import export
from bert_jax.convert.publish.model_card import Card
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer


def test_a_model_without_a_head_for_the_task_is_one_line(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = dataclasses.replace(base_config(), vocab_size=tokenizer.vocab_size, **sizes)
    export(random_params(config), config, tokenizer, tmp_path / "model", card=Card())
    (tmp_path / "new.tsv").write_text("text\nA fine day.\n")
    out = tmp_path / "out.tsv"
    words = [f"--model={tmp_path / 'model'}", f"--input={tmp_path / 'new.tsv'}", f"--out={out}"]
    assert cli.main(["predict", *words]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{tmp_path / 'model'}: the model has no head" in line
    assert "bert-jax finetune" in line
    assert not out.exists()
