"""MiniLM, the sentence encoder, through load, embed, import and export: the vectors of
sentence-transformers, which are stored."""

from pathlib import Path

import numpy as np
import pytest
from minilm import GOLDEN, MODEL, SENTENCES, needs_minilm

import bert_jax
from bert_jax import cli
from bert_jax.api.embed import Settings, embed
from bert_jax.convert.reader import read_folder
from bert_jax.exit_codes import DONE
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

pytestmark = [needs_minilm, pytest.mark.slow]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    with np.load(GOLDEN) as stored:
        return np.asarray(stored["vectors"])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "minilm"
    assert cli.main(["convert", "import", f"--from={MODEL}", f"--out={out}"]) == DONE
    return out


def assert_vectors(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_loaded_vectors_are_those_of_sentence_transformers(wanted):
    assert_vectors(bert_jax.load(MODEL).encode(SENTENCES), wanted)


def test_embedded_vectors_are(wanted, tmp_path):
    lines = [i for i, text in enumerate(SENTENCES) if text and "\n" not in text]
    text = "".join(f"{SENTENCES[i]}\n" for i in lines)
    (tmp_path / "lines.txt").write_text(text, "utf-8")
    embed(MODEL, tmp_path / "lines.txt", tmp_path / "vectors.npy", Settings())
    assert_vectors(np.load(tmp_path / "vectors.npy"), wanted[lines])


def test_imported_vectors_are(imported, wanted):
    assert_vectors(bert_jax.load(imported).encode(SENTENCES), wanted)


def test_exported_vectors_are(imported, wanted, tmp_path):
    stored, loaded = read_folder(imported), bert_jax.load(imported)
    export(
        loaded.params, stored.config, stored.tokenizer, tmp_path / "out",
        card=Card(origin="x"), source=stored.values, sentence=stored.sentence,
    )  # fmt: skip
    assert_vectors(bert_jax.load(tmp_path / "out").encode(SENTENCES), wanted)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_vectors_are_those_of_transformers_pooled_and_normalized(imported):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(imported), AutoModel.from_pretrained(imported)
    found = bert_jax.load(imported).encode(SENTENCES)
    for text, vector in zip(SENTENCES, found, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs).last_hidden_state[0].numpy()
        mean = states.mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=TOLERANCE, rtol=0)
