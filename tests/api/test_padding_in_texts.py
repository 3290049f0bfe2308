"""A padding token that is typed in a text of a RoBERTa, which transformers does not count."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from exported import random_params
from small import model_config

import bert_jax
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import from_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.encoding import check_no_padding, encode
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

TEXTS = ["a b c", "a <pad> b c d"]
ROBERTA = {"layout": "roberta", "type_vocab_size": 1}
COUNTED = [{}, {"layout": "distilbert", "type_vocab_size": 0}, {"position": "rotary"}]
REFUSED = "<pad> in a text has a position of its own in RoBERTa, which bert-jax has not; leave"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("bpe")
    trainer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(TEXTS, vocab_size=270, special_tokens=specials)
    trainer.save_model(str(folder))
    return Tokenizer(from_files(folder / "vocab.json", folder / "merges.txt"))


def model(tokenizer: Tokenizer, form: dict) -> ModelConfig:
    sizes = {"pad_vocab_to_multiple_of": 1, "vocab_size": tokenizer.vocab_size}
    return dataclasses.replace(model_config(), **sizes, **form)


def written(folder: Path, tokenizer: Tokenizer, form: dict) -> Path:
    config = model(tokenizer, form)
    card = Card(objectives=("mlm",))
    export(random_params(config, ("mlm",)), config, tokenizer, folder, card=card)
    return folder


@pytest.mark.parametrize("form", [ROBERTA, {"norm_position": "pre"}])
def test_it_is_refused_wherever_a_text_is_read(form, tokenizer, tmp_path):
    ours = bert_jax.load(written(tmp_path / "model", tokenizer, form))
    masked = lambda texts: ours.fill_mask(f"{texts[1]}<mask>")  # noqa: E731
    for read in (ours.encode, ours.hidden_states, masked):
        with pytest.raises(UserError, match=REFUSED) as error:
            read(TEXTS)
        assert str(error.value).startswith("'<s>a")
    encoded = encode(tokenizer, ours.config, [(text,) for text in TEXTS], 16)
    with pytest.raises(UserError, match=REFUSED):
        check_no_padding(encoded.by_sequence(), tokenizer, ours.config)
    text = tokenizer.for_task(in_words=False, split_special_tokens=True)
    encoded = encode(text, ours.config, [(line,) for line in TEXTS], 16)
    check_no_padding(encoded.by_sequence(), text, ours.config)


def test_the_padding_id_of_config_json_counts(tokenizer, tmp_path):
    """It may be that of another entry, which transformers does not count then."""
    folder, config = written(tmp_path / "model", tokenizer, ROBERTA), model(tokenizer, ROBERTA)
    (folder / "SHA256SUMS").unlink()
    (pad,) = tokenizer.encode_texts(["d"])[0].tolist()
    params = random_params(config, ("mlm",))
    tensors = weights.to_transformers(params, config, pad)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = to_config_json(config, pad_token_id=pad, heads=params)
    (folder / "config.json").write_text(json.dumps(values))
    ours = bert_jax.load(folder)
    assert ours.encode("a <pad>b").shape == (1, config.hidden_size)
    with pytest.raises(UserError, match=r"'.*': d in a text has a position of its own"):
        ours.encode("d")


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("form", COUNTED)
def test_other_models_count_it_as_transformers_does(form, tokenizer, tmp_path):
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = written(tmp_path / "model", tokenizer, form)
    ids = AutoTokenizer.from_pretrained(folder)(TEXTS[1], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(folder).eval()(ids).last_hidden_state[0].numpy()
    found = bert_jax.load(folder).hidden_states(TEXTS[1])[0]
    np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=0)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_with_padding_on_the_left_vectors_are_those_of_texts_without_it(tokenizer, tmp_path):
    """transformers shifts BERT's positions then, so that its vectors depend on the batch."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = written(tmp_path / "model", tokenizer, {})
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "SHA256SUMS").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}))
    read, theirs = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        alone = theirs(**read("a b", return_tensors="pt")).last_hidden_state[0].numpy()
        both = read(["a b", "a b c d"], padding=True, return_tensors="pt")
        padded = theirs(**both).last_hidden_state[0].numpy()[-len(alone) :]
    found = bert_jax.load(folder).hidden_states(["a b", "a b c d"])[0]
    np.testing.assert_allclose(found, alone, atol=2e-5, rtol=0)
    assert np.abs(found - padded).max() > 1e-2
