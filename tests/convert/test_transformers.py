"""What transformers makes of an exported folder."""

import dataclasses
import json
import math

import golden_case as cases
import jax
import numpy as np
import pytest
from exported import PAIRS, TEXTS, base_config, blocks, large_config, random_params
from golden_case import CASES
from layout_models import layout_config
from small import COMPUTE, model_config

import bert_jax
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json
from bert_jax.data_pipeline.sources import find, parse_source, read
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer
from bert_jax.data_pipeline.text.sentences import split
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.objectives.pretraining_model import declare, init_params
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),  # transformers' own deprecations are not ours
]


@pytest.mark.parametrize("name", ["tiny", "tiny_tanh"])
def test_every_key_fits_and_the_outputs_are_equal(name, tokenizer, tmp_path):
    import torch
    from flax import nnx
    from transformers import BertForPreTraining

    case = CASES[name]
    config = dataclasses.replace(model_config(case), vocab_size=tokenizer.vocab_size)
    params = random_params(config)
    export(params, config, tokenizer, tmp_path / "out", card=Card())
    theirs, info = BertForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    theirs = theirs.eval()
    assert theirs.config.hidden_act == {"tiny": "gelu"}.get(name, "gelu_pytorch_tanh")
    batch = cases.batch(case, 0)
    with torch.no_grad():
        out = theirs(
            input_ids=torch.from_numpy(batch["input_ids"]).long(),
            token_type_ids=torch.from_numpy(batch["token_type_ids"]).long(),
            attention_mask=torch.from_numpy(batch["example_ids"]).long(),
        )
    graph, _ = declare(config, COMPUTE, PAIRS)
    ours = nnx.merge(graph, jax.tree.map(jax.numpy.asarray, params))(batch)
    used = batch["masked_weights"] > 0
    rows = np.nonzero(used)[0]
    logits = out.prediction_logits.numpy()[rows, batch["masked_positions"][used]]
    np.testing.assert_allclose(
        np.asarray(ours["mlm"])[used][:, : config.vocab_size], logits, atol=1e-5
    )
    np.testing.assert_allclose(ours["nsp"][:, 0], out.seq_relationship_logits.numpy(), atol=1e-5)


def test_without_pairs_it_is_a_masked_language_model(tokenizer, tmp_path):
    import torch
    from flax import nnx
    from transformers import AutoModelForMaskedLM, BertForMaskedLM

    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    params = random_params(config, ("mlm", "sbo"))
    export(params, config, tokenizer, tmp_path / "out", card=Card(objectives=("mlm", "sbo")))
    theirs, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert isinstance(theirs, BertForMaskedLM)
    assert not any(info.values()), info
    batch = cases.batch(CASES["tiny"], 0)
    with torch.no_grad():
        out = theirs.eval()(
            input_ids=torch.from_numpy(batch["input_ids"]).long(),
            token_type_ids=torch.from_numpy(batch["token_type_ids"]).long(),
            attention_mask=torch.from_numpy(batch["example_ids"]).long(),
        )
    graph, _ = declare(config, COMPUTE, ("mlm",))
    kept = {name: tree for name, tree in params.items() if name != "sbo"}
    model = nnx.merge(graph, jax.tree.map(jax.numpy.asarray, kept))
    ours = np.asarray(model(batch)["mlm"])[..., : config.vocab_size]
    used = batch["masked_weights"] > 0
    logits = out.logits.numpy()[np.nonzero(used)[0], batch["masked_positions"][used]]
    np.testing.assert_allclose(ours[used], logits, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("RoFormerForMaskedLM", {"position": "rotary"}),
        ("RoFormerForMaskedLM", {"position": "rotary", "hidden_act": "gelu_tanh"}),
        ("RobertaPreLayerNormForMaskedLM", {"norm_position": "pre"}),
    ],
    ids=["rotary", "rotary-tanh", "pre"],
)
def test_other_forms_are_other_classes(name, form, tokenizer, tmp_path):
    """Both ways: what transformers saves again is read as the same model."""
    import torch
    from flax import nnx
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size, **form)
    params = random_params(config)
    export(params, config, tokenizer, tmp_path / "out", card=Card())
    theirs, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(theirs).__name__ == name
    assert not any(info.values()), info
    batch = cases.batch(CASES["tiny"], 0)
    real = batch["example_ids"] > 0
    with torch.no_grad():
        out = theirs.eval()(
            input_ids=torch.from_numpy(batch["input_ids"]).long(),
            token_type_ids=torch.from_numpy(batch["token_type_ids"]).long(),
            attention_mask=torch.from_numpy(batch["example_ids"]).long(),
        )
    model = nnx.merge(declare(config, COMPUTE, PAIRS)[0], jax.tree.map(jax.numpy.asarray, params))
    names = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    hidden = model.encoder(*(batch[name] for name in names))
    ours = np.asarray(model.mlm(hidden, model.encoder.embeddings.word[...]))
    logits = out.logits.numpy()
    np.testing.assert_allclose(ours[real][:, : config.vocab_size], logits[real], atol=1e-5)
    saved = tmp_path / "saved"
    theirs.save_pretrained(saved)
    AutoTokenizer.from_pretrained(tmp_path / "out").save_pretrained(saved)
    first, again = (bert_jax.load(folder) for folder in (tmp_path / "out", saved))
    assert first.config == again.config == dataclasses.replace(config, pad_vocab_to_multiple_of=1)
    fills = first.fill_mask("hello [MASK]")
    assert again.fill_mask("hello [MASK]") == fills
    ids = AutoTokenizer.from_pretrained(saved)("hello [MASK]")["input_ids"]
    with torch.no_grad():
        probabilities = theirs(input_ids=torch.tensor([ids])).logits[0, -2].softmax(-1).numpy()
    best = np.sort(probabilities)[::-1][:5]
    np.testing.assert_allclose([fill.probability for fill in fills[0]], best, rtol=1e-4)


@pytest.mark.parametrize("lowercase", [True, False])
def test_auto_tokenizer_gives_the_same_ids(lowercase, tmp_path):
    import tokenizers
    from transformers import AutoTokenizer

    made = Tokenizer.train(TEXTS[:7], 400, lowercase=lowercase)
    config = dataclasses.replace(model_config(), vocab_size=made.vocab_size)
    export(random_params(config), config, made, tmp_path / "out", card=Card())
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = tokenizers.Tokenizer.from_str(made.json.decode())
    assert len(theirs) == made.vocab_size
    assert theirs.model_max_length == config.max_position_embeddings
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ids == ours.encode(text).ids
        if "[MASK]" not in text:  # which is only text to the data pipeline
            assert ids[1:-1] == made.encode_batch([text])[0].tolist()
    special = theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id
    assert (*special, theirs.sep_token_id, theirs.mask_token_id) == tuple(made.special)
    assert theirs("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram", "bpe"])
def test_auto_tokenizer_gives_the_ids_of_a_real_store(
    algorithm, real_wiki_files, real_books, tmp_path
):
    from transformers import AutoTokenizer

    sources = [
        parse_source(f"wikiextractor:{real_wiki_files[0]}"),
        parse_source(f"books:{real_books[0]}"),
    ]
    made = train_tokenizer(sources, 4000, model=algorithm)
    store = build_store(sources, made, tmp_path / "store", held_out_share=0.2, progress=False)
    config = dataclasses.replace(model_config(), vocab_size=made.vocab_size)
    stored = Tokenizer.load(store.tokenizer_path)
    export(random_params(config), config, stored, tmp_path / "out", card=Card())
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    special = theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id
    assert (*special, theirs.sep_token_id, theirs.mask_token_id) == tuple(stored.special)
    documents = []  # as a list of sentences' ids
    for spec in sources:
        for path in find(spec).files:
            for document in read(spec, path):
                sentences = split(cleaned(document, spec)[0], spec.language)
                ids = theirs(sentences)["input_ids"] if sentences else []
                documents.append([sentence[1:-1] for sentence in ids if len(sentence) > 2])
    held_out = store.held_out
    sentences = np.split(held_out.tokens, np.cumsum(held_out.sentence_lengths)[:-1])
    start = 0
    for count in held_out.document_lengths:
        assert [s.tolist() for s in sentences[start : start + count]] in documents
        start += count
    assert start == len(sentences) > 100


def test_a_general_tokenizer_gives_the_same_ids(tokenizer, tmp_path):
    import tokenizers
    from transformers import AutoTokenizer

    spec = json.loads(tokenizer.json)
    spec["normalizer"] = {"type": "NFC"}
    other = Tokenizer(json.dumps(spec).encode())
    config = dataclasses.replace(model_config(), vocab_size=other.vocab_size)
    export(random_params(config), config, other, tmp_path / "out", card=Card())
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = tokenizers.Tokenizer.from_str(other.json.decode())
    assert all(theirs(text)["input_ids"] == ours.encode(text).ids for text in TEXTS)


def test_what_the_page_says_of_transformers_works(exported, monkeypatch):
    monkeypatch.chdir(exported[0].parent)
    exported[0].rename("exported")
    (code,) = (block for block in blocks("python") if "transformers" in block)
    exec(code, {})


def modernbert_config(layers: int, width: int, inner: int) -> ModelConfig:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": inner}
    heads = {"num_attention_heads": width // 64, "max_position_embeddings": 8192}
    return layout_config("modernbert", vocab_size=50_368, **sizes, **heads)


def albert_config(layers: int, width: int, heads: int) -> ModelConfig:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    sizes |= {"num_attention_heads": heads, "embedding_size": 128, "vocab_size": 30_000}
    return layout_config("albert", **sizes, max_position_embeddings=512)


@pytest.mark.parametrize(
    ("config", "learned", "count"),
    [
        (base_config(), PAIRS, 110_106_428),
        (large_config(), PAIRS, 336_226_108),
        (modernbert_config(22, 768, 1152), ("mlm",), 149_655_232),
        (modernbert_config(28, 1024, 2624), ("mlm",), 395_881_664),
        (albert_config(12, 768, 12), PAIRS, 11_813_810),
        (albert_config(24, 1024, 16), PAIRS, 17_847_474),
        (albert_config(24, 2048, 16), PAIRS, 59_021_490),
        (albert_config(12, 4096, 64), PAIRS, 223_158_450),
    ],
    ids=[
        "base",
        "large",
        "modernbert-base",
        "modernbert-large",
        *(f"albert-{size}" for size in ("base", "large", "xlarge", "xxlarge")),
    ],
)
def test_as_many_parameters_with_the_same_names(config, learned, count):
    import torch
    import transformers

    shapes = jax.eval_shape(lambda: init_params(config, COMPUTE, learned, jax.random.key(0)))
    values = to_config_json(config, pad_token_id=0, heads=shapes)
    with torch.device("meta"):
        settings = transformers.AutoConfig.for_model(**values)
        theirs = getattr(transformers, values["architectures"][0])(settings)
    wanted = {name: tuple(p.shape) for name, p in theirs.named_parameters()}
    ours = {}
    for slot in weights.slots(config, weights.groups_in(shapes)):
        leaf = shapes
        for key in slot.ours:
            leaf = leaf[key]
        # Zeros that take no memory, whatever the size.
        empty = np.broadcast_to(np.float32(0), leaf.shape)
        ours[slot.theirs] = slot.shape_of_theirs(empty)
    assert ours == wanted
    assert sum(map(math.prod, ours.values())) == count
