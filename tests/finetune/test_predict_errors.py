"""What `bert-jax predict` says of a model or a file that it cannot use, and of what it left out."""

import dataclasses
import json
from pathlib import Path

import pytest
from exported import base_config
from gcs_emulator import emulated
from layout_models import task_params

from bert_jax import cli
from bert_jax.config.schema import ModelConfig
from bert_jax.convert.task_heads import with_head
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.find_model import find_model
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
POSITIONS = 40
HEAD = {"name": "classifier", "labels": ("a", "b")}


def exported(folder: Path, tokenizer: Tokenizer, **head: object) -> str:
    """Exports a model, with a head if one is described; returns `--model=…`."""
    config: ModelConfig = dataclasses.replace(
        base_config(), vocab_size=tokenizer.vocab_size, max_position_embeddings=POSITIONS, **SIZES
    )
    if head:
        config = with_head(config, **head)  # type: ignore[arg-type]
    export(task_params(config), config, tokenizer, folder, card=Card())
    return f"--model={folder}"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Returns the one line of an error of `bert-jax predict`."""
    assert cli.main(["predict", *words]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({}, "the model has no head of a task; fine-tune it first: bert-jax finetune"),
        (
            {
                "name": "classifier",
                "labels": ("a", "b"),
                "problem_type": "multi_label_classification",
            },
            "the model predicts 2 scores or labels for a text",
        ),
        (
            HEAD | {"problem_type": "regression"},
            "the model predicts 2 scores",
        ),
    ],
)
def test_a_model_that_cannot_predict_is_one_line(
    head: dict, message: str, tokenizer: Tokenizer, tmp_path: Path, capsys
) -> None:
    model = exported(tmp_path / "model", tokenizer, **head)
    (tmp_path / "new.tsv").write_text("text\nA fine day.\n")
    out = tmp_path / "out.tsv"
    line = said(capsys, model, f"--input={tmp_path / 'new.tsv'}", f"--out={out}")
    assert f"{tmp_path / 'model'}: {message}" in line
    assert not out.exists()


def test_the_input_is_kept_and_what_is_left_out_is_said(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = exported(tmp_path / "model", tokenizer, **HEAD)
    new = tmp_path / "new.csv"
    text = f'text,n\nA fine day.,1\n\n"{"a day " * POSITIONS}",2\n'
    new.write_text(text)
    line = said(capsys, model, f"--input={new}", f"--out={tmp_path}/./new.csv")
    assert "new.csv: is the input, which it would replace; give another name" in line
    assert new.read_text() == text
    line = said(capsys, model, f"--input={new}", f"--out={tmp_path}/missing/out.tsv")
    assert "missing; create it, or choose another" in line
    line = said(capsys, model, f"--input={new}", f"--out={tmp_path}/out.csv")
    assert "out.csv: predictions are not separated by commas; end the name in .tsv" in line
    (tmp_path / "folder").mkdir()
    line = said(capsys, model, f"--input={tmp_path}/folder", f"--out={tmp_path}/out.tsv")
    assert f"{tmp_path}/folder: a folder; give a .tsv, .csv, .jsonl or .parquet file" in line
    assert cli.main(["predict", model, f"--input={new}", f"--out={tmp_path}/out.tsv"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 predictions of" in printed
    assert "1 row dropped (blank row), 1 cut to the limit" in printed


def test_the_best_seed_is_found_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [{"run": f"seed-{seed}", "accuracy": 0.5 + seed / 10} for seed in range(2)]
    results = json.dumps({"metrics": ["accuracy"], "runs": runs}).encode()
    with emulated(monkeypatch, "bucket") as server:
        server.write("bucket", "seeds/results.json", results)
        assert find_model("gs://bucket/seeds") == ("gs://bucket/seeds/seed-1", None)
        server.write("bucket", "damaged/results.json", b"{")
        with pytest.raises(UserError, match=r"gs://bucket/damaged/results.json: not written by"):
            find_model("gs://bucket/damaged")
