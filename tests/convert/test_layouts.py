"""Every layout against transformers: names, config.json, tokenizer and outputs, both ways."""

import dataclasses
import json
import sys
from pathlib import Path

import golden_case as cases
import jax
import numpy as np
import pytest
import safetensors.numpy
from docs_lines import docs_lines
from exported import random_params
from golden_case import CASES
from layout_models import layout_config
from small import COMPUTE, model_config

import bert_jax
from bert_jax import cli
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import from_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.objectives.pretraining_model import declare
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

FORMS = {
    "roberta": {"layout": "roberta", "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "distilbert": {"layout": "distilbert", "type_vocab_size": 0},
}
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "Naïve café: 3.14 (ÜBER), isn't it?",
    "東京は日本の首都です。 A second  sentence.",
    "",
]


def model(name: str, **changes) -> ModelConfig:
    return dataclasses.replace(
        model_config(), pad_vocab_to_multiple_of=1, **{**FORMS[name], **changes}
    )


@pytest.fixture(scope="module")
def bpe_files(tmp_path_factory) -> Path:
    """A folder with vocab.json and merges.txt, trained as RoBERTa's were."""
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("bpe")
    trainer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(LINES * 5, vocab_size=300, min_frequency=2, special_tokens=specials)
    trainer.save_model(str(folder))
    return folder


@pytest.fixture(scope="module")
def bpe(bpe_files) -> Tokenizer:
    return Tokenizer(from_files(bpe_files / "vocab.json", bpe_files / "merges.txt"))


# The names of the decoder's weight and bias, as `safetensors.torch.save_model` keeps them of those
# that are tied, with the names that other files have.
DECODERS = {
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "roberta": {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    "distilbert": {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    "modernbert": {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    "albert": {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    "electra": {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
}


@pytest.mark.parametrize(
    ("name", "decoder"), [(name, decoder) for name in DECODERS for decoder in DECODERS[name]]
)
def test_a_tied_tensor_may_be_stored_once_as_the_decoders(name, decoder):
    config = layout_config(name)
    tensors = weights.to_transformers(random_params(config, ("mlm",)), config)
    moved = dict(tensors)
    moved[decoder] = moved.pop(DECODERS[name][decoder])
    assert weights.leftover(moved, config) == []
    assert weights.present(moved, config) == {"encoder", "mlm"}
    back = weights.to_transformers(weights.from_transformers(moved, config), config)
    assert back.keys() == tensors.keys()
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(back[key], tensor)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_that_is_not_tied_is_named(name):
    config = layout_config(name)
    tensors = weights.to_transformers(random_params(config, ("mlm",)), config)
    decoder, words = next(iter(DECODERS[name].items()))
    with pytest.raises(UserError, match=f"^{decoder} differs from {words}; only models that tie"):
        weights.from_transformers(tensors | {decoder: tensors[words] + 1}, config)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("pad", [0, 1])
def test_there_and_back_is_bit_exact(name, pad):
    config = model(name)
    params = random_params(config, ("mlm",))
    tensors = weights.to_transformers(params, config, pad)
    assert weights.present(tensors, config) == {"encoder", "mlm"}
    assert weights.leftover(tensors, config) == []
    back = weights.from_transformers(tensors, config, pad)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    values = json.loads(json.dumps(to_config_json(config, pad_token_id=pad, heads=params)))
    assert from_config_json(values, "config.json") == config


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layout": "distilbert"}, "type_vocab_size=2: DistilBertModel has 0"),
        ({"layout": "roberta", "type_vocab_size": 0}, "0: RobertaModel has token types"),
        ({"layout": "roberta", "position": "rotary"}, 'no class with layout="roberta", position='),
        ({"layout": "roberta", "hidden_act": "gelu_tanh"}, 'and hidden_act="gelu_tanh"'),
    ],
)
def test_what_no_class_computes_is_refused(change, says):
    config = dataclasses.replace(model_config(), **change)
    with pytest.raises(UserError, match=says):
        to_config_json(config, pad_token_id=0)


def test_a_roberta_has_the_bias_of_its_scores_twice(bpe, tmp_path):
    """transformers 4.48 reads that of the decoder alone, and says nothing if there is none."""
    config = model("roberta", vocab_size=bpe.vocab_size)
    params = random_params(config, ("mlm",))
    export(params, config, bpe, tmp_path / "out", card=Card(objectives=("mlm",)))
    found = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    np.testing.assert_array_equal(found["lm_head.decoder.bias"], found["lm_head.bias"])
    count = sum(tensor.size for tensor in found.values()) - config.vocab_size
    assert f"- {count:,} parameters" in (tmp_path / "out/README.md").read_text()
    back = bert_jax.load(tmp_path / "out")
    np.testing.assert_array_equal(back.params["mlm"]["bias"], params["mlm"]["bias"])


@pytest.mark.parametrize("kind", ["camembert", "xlm-roberta"])
def test_families_of_robertas_layout_are_read(kind):
    config = model("roberta")
    values = to_config_json(config, pad_token_id=1, heads=("mlm",)) | {"model_type": kind}
    assert from_config_json(values, "config.json") == config


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", FORMS)
def test_transformers_computes_the_same_and_its_folder_is_read_back(name, bpe, tokenizer, tmp_path):
    import torch
    from flax import nnx
    from transformers import AutoModelForMaskedLM

    of_model = bpe if name == "roberta" else tokenizer
    config = model(name, vocab_size=of_model.vocab_size)
    params = random_params(config, ("mlm",))
    export(params, config, of_model, tmp_path / "out", card=Card(objectives=("mlm",)))
    theirs, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    assert type(theirs).__name__.lower() == f"{name}formaskedlm"
    batch = cases.batch(CASES["tiny"], 0)
    batch["input_ids"] = np.where(
        batch["example_ids"] > 0, 5 + batch["input_ids"] % (of_model.vocab_size - 5),
        of_model.special.pad,
    )  # fmt: skip
    batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])
    real = batch["example_ids"] > 0
    with torch.no_grad():
        out = theirs.eval()(
            input_ids=torch.from_numpy(batch["input_ids"]).long(),
            attention_mask=torch.from_numpy(real).long(),
        )
    ours = nnx.merge(
        declare(config, COMPUTE, ("mlm",))[0], jax.tree.map(jax.numpy.asarray, params)
    )(batch)
    used = batch["masked_weights"] > 0
    logits = out.logits.numpy()[np.nonzero(used)[0], batch["masked_positions"][used]]
    np.testing.assert_allclose(
        np.asarray(ours["mlm"])[used][:, : config.vocab_size], logits, atol=1e-5
    )
    theirs.save_pretrained(tmp_path / "again")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "again" / file).write_bytes((tmp_path / "out" / file).read_bytes())
    command = ["convert", "import", f"--from={tmp_path / 'again'}", f"--out={tmp_path / 'back'}"]
    assert cli.main(command) == 0
    first, second = (
        safetensors.numpy.load_file(tmp_path / folder / "model.safetensors")
        for folder in ("out", "back")
    )
    assert first.keys() == second.keys()
    for tensor, values in first.items():
        np.testing.assert_array_equal(values, second[tensor], err_msg=tensor)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("prefix", [False, True])
def test_a_byte_level_bpe_gives_the_ids_of_transformers(prefix, bpe_files, tmp_path):
    from tokenizers import AddedToken
    from transformers import AutoTokenizer, RobertaTokenizerFast

    mask = AddedToken("<mask>", lstrip=True, special=True)  # as in the released tokenizer.json
    theirs = RobertaTokenizerFast(
        str(bpe_files / "vocab.json"), str(bpe_files / "merges.txt"), add_prefix_space=prefix,
        mask_token=mask,
    )  # fmt: skip
    files = bpe_files / "vocab.json", bpe_files / "merges.txt"
    ours = Tokenizer(from_files(*files, add_prefix_space=prefix))
    config = model("roberta", vocab_size=ours.vocab_size)
    params = random_params(config, ("mlm",))
    export(params, config, ours, tmp_path / "out", card=Card(objectives=("mlm",)))
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    for line in [*LINES, "all work and no <mask>, says he"]:
        assert exported(line)["input_ids"] == theirs(line)["input_ids"], line
        in_paragraph = theirs(f" {line}", add_special_tokens=False)["input_ids"]
        assert line.count("<mask>") or list(ours.encode_batch([line])[0]) == in_paragraph
    pair = theirs("a dog", "a fox")["input_ids"]
    assert exported("a dog", "a fox")["input_ids"] == pair


def test_byte_level_pieces_begin_words_where_a_space_is(bpe):
    (ids,) = bpe.encode_batch(["the lazy dog."])
    starts = bpe.word_starts[ids]
    assert "".join(map(bpe.token, ids)) == "ĠtheĠlazyĠdog."
    assert starts.sum() == 3
    assert starts[0]
    assert bpe.word_starts[list(bpe.special)].all()


def test_a_roberta_of_older_files_is_imported_and_fills(bpe, bpe_files, tmp_path, capsys):
    """vocab.json, merges.txt and the pooler that no class with an MLM head has."""
    config = model("roberta", vocab_size=bpe.vocab_size)
    params, folder = random_params(config, ("mlm",)), tmp_path / "roberta"
    folder.mkdir()
    tensors = weights.to_transformers(params, config, bpe.special.pad)
    width = config.hidden_size
    pooler = {"weight": np.ones((width, width), np.float32), "bias": np.ones(width, np.float32)}
    rows = tensors["roberta.embeddings.position_embeddings.weight"]
    rows[: bpe.special.pad + 1] = 0.25  # as the released ones: not zero, and never used
    tensors |= {f"roberta.pooler.dense.{name}": values for name, values in pooler.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = to_config_json(config, pad_token_id=bpe.special.pad, heads=params)
    (folder / "config.json").write_text(json.dumps(values))
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes((bpe_files / name).read_bytes())
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out
    assert "left out, since no head reads it: roberta.pooler.dense.bias, roberta.pooler" in said
    imported = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    tensors |= weights.copies(tensors, config)
    for tensor, kept in imported.items():
        np.testing.assert_array_equal(kept, tensors[tensor], err_msg=tensor)
    assert cli.main(["fill", f"--model={tmp_path / 'out'}", "The quick <mask> fox"]) == 0
    loaded = bert_jax.load(tmp_path / "out")
    assert len(loaded.fill_mask("the <mask> dog")[0]) == 5
    with pytest.raises(UserError, match=r"^no <mask> in 'the \[MASK\] dog'"):
        loaded.fill_mask("the [MASK] dog")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "merges.txt").unlink(), "merges.txt"),
        (lambda f: (f / "vocab.json").write_text("{}"), "vocab.json"),
        (lambda f: (f / "merges.txt").write_text("a b c d\n"), "no byte-level BPE"),
    ],
)
def test_bad_files_of_a_byte_level_bpe_are_one_line(damage, says, bpe_files, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((bpe_files / name).read_bytes())
    damage(tmp_path)
    with pytest.raises(UserError, match=says) as error:
        from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert "\n" not in str(error.value)


def test_a_vocab_txt_that_is_no_wordpiece_vocabulary_is_refused(tmp_path):
    """PhoBERT's has RoBERTa's special tokens, and "@@" marks pieces that are continued."""
    file = tmp_path / "vocab.txt"
    file.write_text("<s>\n<pad>\n</s>\n<unk>\n<mask>\nxin\nchào@@\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"is it a WordPiece vocabulary\?"):
        Tokenizer.load(file)


@pytest.fixture(params=["xlm-roberta", "camembert"])
def sentencepiece_folder(request, tmp_path) -> Path:
    """A folder with the tokenizer of such a model, trained on the pages of documentation."""
    import sentencepiece

    folder = tmp_path / "sentencepiece"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(docs_lines()), model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=1000, model_type="unigram", minloglevel=2,
    )  # fmt: skip
    (folder / "sentencepiece.bpe.vocab").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": request.param}))
    return folder


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_sentencepiece_gives_the_ids_of_transformers_on_a_thousand_lines(sentencepiece_folder):
    from transformers import AutoTokenizer

    ours = read_tokenizer(sentencepiece_folder, None)
    theirs = AutoTokenizer.from_pretrained(sentencepiece_folder)
    # A special token in a text is text in ours.
    lines = [line for line in docs_lines() if not any(map(line.__contains__, SPECIALS))][:1000]
    assert len(lines) == 1000
    wanted = theirs(lines, add_special_tokens=False)["input_ids"]
    for line, ids, found in zip(lines, wanted, ours.encode_batch(lines), strict=True):
        assert found.tolist() == ids, line
    assert list(ours.special) == theirs.convert_tokens_to_ids(SPECIALS)
    starts = ours.word_starts[ours.encode_batch(["the model"])[0]]
    assert starts.sum() == 2


def test_without_transformers_a_line_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"sentencepiece\.bpe\.model: needs transformers, which is"):
        read_tokenizer(tmp_path, None)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("sentencepiece.bpe.model", "XLMRobertaTokenizer", "transformers cannot read it"),
        (
            "sentencepiece.bpe.model",
            "RobertaTokenizer",
            "RobertaTokenizer, the tokenizer class that this folder names, does",
        ),
    ],
)
def test_a_tokenizer_that_transformers_cannot_convert_is_one_line(name, kind, says, tmp_path):
    (tmp_path / name).write_text("a b 1\n")
    (tmp_path / "vocab.txt").write_text("xin 3\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    with pytest.raises(UserError, match=says) as error:
        read_tokenizer(tmp_path, None)
    assert "\n" not in str(error.value)
