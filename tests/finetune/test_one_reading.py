"""Every verb reads a text as `AutoTokenizer` reads it with the files of the model's export.

By default these files are read by the tokenizers library alone, and by transformers where it is
installed.
"""

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from exported import TEXTS
from framed import framed
from small import model_config
from small_task import task_config

import bert_jax
from bert_jax.config.recorded import head_of, recorded
from bert_jax.config.schema import ComputeConfig, Config
from bert_jax.convert.sources import read_run_tokenizer
from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.convert.task_heads import with_head
from bert_jax.convert.tokenizer_files import tokenizer_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.task_tokenizer import find_tokenizer
from bert_jax.objectives.known_objectives import task_of
from bert_jax.objectives.pretraining_model import init_params
from bert_jax.workdir.layout import Workdir

ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LINES = [
    *TEXTS[:7],
    "The quick brown fox isn't at 1234 [SEP] street.",
    "She sells sea shells by the sea shore; how much wood would a woodchuck chuck?",
    "All work and no play makes Jack a dull boy, the rain in Spain stays in the plain.",
]


def wordpiece(*, lowercase: bool) -> Tokenizer:
    return Tokenizer.train(LINES, 300, lowercase=lowercase)


def sentencepiece(model: str) -> Tokenizer:
    return Tokenizer.train(LINES * 20, 130, model=model, lowercase=False)


def byte_level(*, prefix: bool = False, first: tokenizers.Regex | None = None) -> Tokenizer:
    """first: what splits words before the step of bytes, which then splits none."""
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    steps = tokenizers.pre_tokenizers
    own = steps.ByteLevel(add_prefix_space=prefix, use_regex=first is None)
    encoder.pre_tokenizer = steps.Sequence([steps.Split(first, "isolated"), own]) if first else own
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=ROBERTA, show_progress=False,
        initial_alphabet=steps.ByteLevel.alphabet(),
    )  # fmt: skip
    encoder.train_from_iterator([f" {line}" for line in LINES * 5], trainer)
    mask = tokenizers.AddedToken("<mask>", lstrip=True)
    encoder.add_special_tokens([*ROBERTA[:-1], mask])
    encoder.post_processor = tokenizers.processors.RobertaProcessing(
        *(((name, encoder.token_to_id(name))) for name in ("</s>", "<s>")), add_prefix_space=prefix
    )
    return Tokenizer(encoder.to_str().encode())


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece-cased": lambda: wordpiece(lowercase=False),
    "wordpiece-uncased": lambda: wordpiece(lowercase=True),
    "unigram": lambda: sentencepiece("unigram"),
    "bpe": lambda: sentencepiece("bpe"),
    "byte-level": byte_level,
    "byte-level-prefix": lambda: byte_level(prefix=True),
    "byte-level-split": lambda: byte_level(
        first=tokenizers.Regex(r" ?\p{L}+|\p{N}|\s?[^\s\p{L}]+|\s+")
    ),
    "byte-level-one-separator": lambda: framed(byte_level(), between="</s>"),
    "byte-level-unframed": lambda: framed(byte_level()),
    "unigram-two-starts": lambda: framed(sentencepiece("unigram"), between="[SEP] [CLS]:1"),
    "wordpiece-pair-without-separators": lambda: framed(wordpiece(lowercase=True), between=""),
}
KINDS = [*MAKERS]
made = cache(lambda kind: MAKERS[kind]())


def texts_for(tokenizer: Tokenizer) -> list[str]:
    """Texts with every special token in a word, between words and at the ends."""
    names = [*map(tokenizer.token, tokenizer.special)]
    return [
        "The quick brown fox isn't at 1234 street.",
        *(f"a {name} fox" for name in names),
        *(f"{name}fox{name}" for name in names),
        f" {names[3]} {names[4]} ",
        "東京 [SEP] </s> <s> [CLS] ÜBER",
    ]


def words_for(tokenizer: Tokenizer) -> list[list[str]]:
    """As `texts_for`; each word has a piece."""
    return [text.split() for text in texts_for(tokenizer)]


HEADS = {"classifier": ("a", "b"), "tagger": ("O", "B-x"), "qa": ("start", "end")}


@cache
def model_with(head: str) -> bert_jax.Model:
    """A model whose logits are zeros, and which records the ids that its encoder would read."""
    base = dataclasses.replace(
        model_config(), num_hidden_layers=1, hidden_size=8, num_attention_heads=1,
        intermediate_size=8, vocab_size=512, max_position_embeddings=256,
    )  # fmt: skip
    config, compute = with_head(base, head, HEADS[head]), ComputeConfig.plain()
    own = (task_of(config.head),)
    shapes = jax.eval_shape(lambda: init_params(config, compute, own, jax.random.key(0)))
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    model = bert_jax.Model(config, params, made("wordpiece-cased"), frozenset(params))
    predictor = model._predictor_of("classification", "tagging", "question_answering")
    model.seen = []

    def logits(encoded, **_):
        parts = np.split(encoded.ids, encoded.starts[1:-1])
        model.seen.extend(part.tolist() for part in parts)
        shape = (2,)
        return [np.zeros(shape if head == "classifier" else (len(p), *shape)) for p in parts]

    predictor.logits = logits
    return model


def exported(folder: Path, kind: str, head: str, *, split: bool) -> bert_jax.Model:
    """The model with the tokenizer that its export has, whose files are in the folder."""
    own = made(kind).for_task(in_words=head == "tagger", split_special_tokens=split)
    write(folder / head, own)
    model = model_with(head)
    model.tokenizer = model._predictor._tokenizer = read_tokenizer(folder / head, None)
    return model


def write(folder: Path, tokenizer: Tokenizer, **settings: object) -> None:
    folder.mkdir()
    for name, data in tokenizer_files(tokenizer, 256).items():
        (folder / name).write_bytes(data)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def read_by_verbs(folder: Path, kind: str, *, split: bool) -> dict[str, list[list[int]]]:
    """Returns the ids that each verb gives its model, of `texts_for`, of their words or of pairs of
    them; and writes the files of the exports."""
    texts = texts_for(made(kind))
    pairs = [(text, texts[0]) for text in texts]
    classifier, tagger, asker = (exported(folder, kind, head, split=split) for head in HEADS)

    def seen(model: bert_jax.Model, verb: Callable[[Any], object], given: Any) -> list[list[int]]:
        model.seen.clear()
        verb(given)
        return [*model.seen]

    return {
        "encode": [one.ids for one in classifier.tokens(texts)],
        "spans": [one.ids for one in classifier.tokens(texts, spans=True)],
        "predict": seen(classifier, classifier.predict, texts),
        "pairs": seen(classifier, classifier.predict, pairs),
        "tag": seen(tagger, tagger.tag, words_for(made(kind))),
        "answer": seen(asker, asker.answer, pairs),
    }


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_has_the_ids_of_the_exported_tokenizer_json(kind, split, tmp_path):
    found = read_by_verbs(tmp_path, kind, split=split)
    tokenizer, texts = made(kind), texts_for(made(kind))
    theirs = {}
    for head in HEADS:
        read = tokenizers.Tokenizer.from_file(str(tmp_path / head / "tokenizer.json"))
        settings = json.loads((tmp_path / head / "tokenizer_config.json").read_text())
        read.encode_special_tokens = settings.get("split_special_tokens", False)
        theirs[head] = read
    single = [theirs["classifier"].encode(text).ids for text in texts]
    assert found["encode"] == found["spans"] == found["predict"] == single
    assert found["pairs"] == [theirs["classifier"].encode(text, texts[0]).ids for text in texts]
    assert found["answer"] == [theirs["qa"].encode(text, texts[0]).ids for text in texts]
    words = words_for(tokenizer)
    assert found["tag"] == [theirs["tagger"].encode(w, is_pretokenized=True).ids for w in words]
    special = set(tokenizer.special) - {tokenizer.special.unk}  # the two ways differ here
    assert any(special & set(ids[1:-1]) for ids in single) is not split


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_has_the_ids_of_auto_tokenizer(kind, split, tmp_path):
    from transformers import AutoTokenizer

    found, texts = read_by_verbs(tmp_path, kind, split=split), texts_for(made(kind))
    theirs = {head: AutoTokenizer.from_pretrained(tmp_path / head) for head in HEADS}
    single = [theirs["classifier"](text)["input_ids"] for text in texts]
    assert found["encode"] == found["spans"] == found["predict"] == single
    assert found["pairs"] == [theirs["classifier"](text, texts[0])["input_ids"] for text in texts]
    assert found["answer"] == [theirs["qa"](text, texts[0])["input_ids"] for text in texts]
    tagged = [theirs["tagger"](w, is_split_into_words=True) for w in words_for(made(kind))]
    assert found["tag"] == [one["input_ids"] for one in tagged]


@pytest.mark.parametrize("kind", ["byte-level", "byte-level-prefix", "byte-level-split"])
def test_a_word_alone_is_the_word_in_a_text(kind):
    """Or a tagger that was pretrained on text meets words that it has never seen."""
    tokenizer = made(kind)
    words = ["The", "quick", "fox"]
    own = tokenizer.for_task(in_words=True, split_special_tokens=False)
    (in_text,) = tokenizer.encode_batch([" ".join(words)])
    assert np.concatenate(own.encode_texts(words)).tolist() == in_text.tolist()
    again = own.for_task(in_words=True, split_special_tokens=False)
    assert again.json == own.json


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("in_words", [False, True])
def test_a_run_and_its_checkpoint_have_the_same_tokenizer(in_words, split, tmp_path):
    """What fine-tuning made the ids with is what predicts and what is exported."""
    file = tmp_path / "tokenizer.json"
    made("byte-level").save(file)
    config = task_config(
        tmp_path, task__split_special_tokens=split, task__name="tagging" if in_words else "rte"
    )
    trained = find_tokenizer(config, Workdir.open(tmp_path / "run"), in_words=in_words)
    assert (trained.json != file.read_bytes()) is in_words
    model = with_head(config.model, "tagger" if in_words else "classifier", ("O", "B-x"))
    with_model = config.with_model(model)
    meta = {"config": recorded(with_model), "data": head_of(model)}
    run = Workdir.open(tmp_path)
    for saved in (trained, made("byte-level")):  # an earlier version saved that of the model
        file.write_bytes(saved.json)
        found = read_run_tokenizer(
            run, {**meta, "data": meta["data"] | {"tokenizer": saved.digest}}
        )
        assert (found.json, found.split_special_tokens) == (trained.json, split)


def test_the_way_of_a_folder_of_others_is_its_own(tmp_path):
    tokenizer = made("wordpiece-cased")
    (mask,) = tokenizer.encode_texts(["[MASK]"])
    assert mask.tolist() == [tokenizer.special.mask]
    write(tmp_path / "split", tokenizer, split_special_tokens=True)
    found = read_tokenizer(tmp_path / "split", None)
    assert tokenizer.special.mask not in found.encode_texts(["[MASK]"])[0]
    write(tmp_path / "damaged", tokenizer, split_special_tokens="yes")
    with pytest.raises(UserError, match="split_special_tokens='yes' should be true or false"):
        read_tokenizer(tmp_path / "damaged", None)

    def of(**changes: object) -> Config:
        return task_config(tmp_path, init=str(tmp_path / "split"), task__tokenizer="", **changes)

    run = Workdir.open(tmp_path / "run")
    with pytest.raises(UserError, match=r"give --config\.task\.split_special_tokens=True$"):
        find_tokenizer(of(), run, in_words=False)
    same = find_tokenizer(of(task__split_special_tokens=True), run, in_words=False)
    assert same.split_special_tokens
