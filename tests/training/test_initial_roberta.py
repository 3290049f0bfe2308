"""A RoBERTa, imported with its byte-level BPE, is continued with masks over whole words."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from exported import random_params
from layout_models import layout_config
from stores import StoredDocument, write_store
from tokenizers import ByteLevelBPETokenizer

import bert_jax
from bert_jax import cli
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.training import loop
from bert_jax.training.batches import phase_batches

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.fixture(scope="module")
def text() -> list[str]:
    """Sentences with words that are several pieces."""
    page = Path(__file__).parents[2] / "docs/training.md"
    return [line for line in page.read_text("utf-8").splitlines() if len(line.split()) > 5]


@pytest.fixture(scope="module")
def imported(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa as transformers saves it, without a tokenizer.json, after `convert import`."""
    folder = tmp_path_factory.mktemp("roberta")
    saved, out = folder / "saved", folder / "imported"
    saved.mkdir()
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(text, vocab_size=400, special_tokens=SPECIALS)
    trainer.save_model(str(saved))
    size = trainer.get_vocab_size()
    config = layout_config("roberta", vocab_size=size, max_position_embeddings=64)
    params = random_params(config, ("mlm",))
    tensors = weights.to_transformers(params, config, SPECIALS.index("<pad>"))
    safetensors.numpy.save_file(tensors, saved / "model.safetensors")
    values = to_config_json(config, pad_token_id=SPECIALS.index("<pad>"), heads=params)
    (saved / "config.json").write_text(json.dumps(values))
    assert cli.main(["convert", "import", f"--from={saved}", f"--out={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def store(text: list[str], imported: Path) -> TokenStore:
    tokenizer = Tokenizer.load(imported / "tokenizer.json")
    ids = [sentence.tolist() for sentence in tokenizer.encode_batch(text)]
    documents = [StoredDocument(ids[i : i + 4], source=0) for i in range(0, len(ids), 4)]
    return write_store(
        imported.parent / "store", tokenizer=tokenizer, train=documents[3:], held_out=documents[:3],
        sources=("docs",),
    )  # fmt: skip


def words_of(line: list[str]) -> list[list[int]]:
    """The positions of each word in a row, by the text of its pieces alone."""
    words: list[list[int]] = []
    for position, piece in enumerate(line):
        if piece in SPECIALS:
            words.append([])
        elif piece.startswith("\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}") or not words[-1]:
            words.append([position])
        else:
            words[-1].append(position)
    return [word for word in words if word]


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["whole_word", "span"])
def test_a_roberta_is_continued_with_masks_over_whole_words(
    masking: str, imported: Path, store: TokenStore, tmp_path: Path
) -> None:
    config = bert_jax.config(
        "continue_domain",
        {
            "init": imported,
            "data.store": store.path,
            "data.masking": masking,
            "data.pairing": "full_sentences",
            "phases[0].steps": 2,
            "phases[0].batch_size": 8,
            "phases[0].seq_length": 64,
            "phases[0].max_predictions": 10,
            "optimizer.warmup_steps": 0,
            "evaluation.batches": 1,
        },
    )
    batch = phase_batches(config, store, store.train, config.phases[0]).batch(0)
    tokenizer = Tokenizer.load(store.tokenizer_path)
    several = 0
    for row, ids in enumerate(batch["input_ids"]):
        used = batch["masked_weights"][row] > 0
        masked = set(batch["masked_positions"][row][used].tolist())
        ids[batch["masked_positions"][row][used]] = batch["masked_labels"][row][used]
        words = words_of([tokenizer.token(i) for i in ids])
        inside = [sorted(masked.intersection(word)) for word in words]
        cut = [i for i, word in enumerate(words) if 0 < len(inside[i]) < len(word)]
        # As in SpanBERT, the budget may cut the last span of an example.
        assert len(cut) <= (masking == "span")
        assert all(inside[i] == words[i][: len(inside[i])] for i in cut)
        several += sum(len(positions) > 1 for positions in inside)
    assert several > 8
    loop.pretrain(config, tmp_path / "run")
    bert_jax.export(tmp_path / "run", tmp_path / "out")
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert values["architectures"] == ["RobertaForMaskedLM"]
    before, after = (
        safetensors.numpy.load_file(folder / "model.safetensors")
        for folder in (imported, tmp_path / "out")
    )
    assert before.keys() == after.keys()
    moved = {name: np.abs(after[name] - tensor).max() for name, tensor in before.items()}
    assert 0 < max(moved.values()) < 1e-3, moved  # two updates from its weights at 2e-5
