"""Texts as tokens: separators, token types, and the truncation of run_classifier.py."""

import json

import numpy as np
import pytest
from small_task import WORDS

from bert_jax.config.schema import ModelConfig
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.finetune.tasks.encoding import cut_longer, encode

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab([*SPECIALS, *WORDS], lowercase=True)


def original(first: list[int], second: list[int], room: int) -> tuple[int, int]:
    """`_truncate_seq_pair` of run_classifier.py."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return len(first), len(second)


def test_the_longer_text_is_cut_first_as_in_the_original() -> None:
    for a in range(14):
        for b in range(14):
            for room in range(2, 30):
                wanted = original([0] * a, [0] * b, room)
                assert cut_longer(a, b, room) == wanted, (a, b, room)


def test_a_text_and_a_pair_have_the_tokens_of_bert(tokenizer: Tokenizer) -> None:
    one, two, three = (tokenizer.encode_batch([word])[0][0] for word in WORDS[:3])
    texts = [(WORDS[0],), (WORDS[0], f"{WORDS[1]} {WORDS[2]}"), ("",), ("", WORDS[0])]
    found = encode(tokenizer, ModelConfig(), texts, 32)
    parts = np.split(found.ids, found.starts[1:-1])
    assert [part.tolist() for part in parts] == [
        [CLS, one, SEP],
        [CLS, one, SEP, two, three, SEP],
        [CLS, SEP],
        [CLS, SEP, one, SEP],
    ]
    types = np.split(found.types, found.starts[1:-1])
    assert [part.tolist() for part in types] == [[0] * 3, [0] * 3 + [1] * 3, [0] * 2, [0, 0, 1, 1]]
    assert found.cut == 0
    untyped = encode(tokenizer, ModelConfig(type_vocab_size=0), texts, 32)
    assert not untyped.types.any()


def test_cut_examples_are_counted(tokenizer: Tokenizer) -> None:
    long = " ".join(WORDS[:20])
    found = encode(tokenizer, ModelConfig(), [(long,), (long, long), (WORDS[0],), (long, "")], 10)
    assert found.lengths.tolist() == [10, 10, 3, 10]
    assert found.cut == 3


def test_special_tokens_in_a_text_are_text_where_the_task_says_so(tokenizer: Tokenizer) -> None:
    """As in run_classifier.py; else they are read as in transformers."""
    texts = [("[SEP] [MASK]",)]
    assert encode(tokenizer, ModelConfig(), texts, 32).ids.tolist() == [CLS, SEP, MASK, SEP]
    own = tokenizer.for_task(in_words=False, split_special_tokens=True)
    found = encode(own, ModelConfig(), texts, 32)
    assert np.count_nonzero(found.ids == SEP) == 1
    assert MASK not in found.ids


def test_roberta_has_two_separators_and_no_types(tokenizer: Tokenizer) -> None:
    text = tokenizer.json.decode()
    for ours, theirs in zip(SPECIALS, ["<pad>", "<unk>", "<s>", "</s>", "<mask>"], strict=True):
        text = text.replace(ours, theirs)
    spec = json.loads(text)
    separator = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    parts = spec["post_processor"]["pair"]
    parts.insert(parts.index(separator), separator)
    for part in parts:
        next(iter(part.values()))["type_id"] = 0
    roberta = Tokenizer(json.dumps(spec).encode())
    one, two = (tokenizer.encode_batch([word])[0][0] for word in WORDS[:2])
    found = encode(roberta, ModelConfig(), [(WORDS[0], WORDS[1]), (WORDS[0],)], 32)
    assert found.ids.tolist() == [CLS, one, SEP, SEP, two, SEP, CLS, one, SEP]
    assert not found.types.any()
    shorter = encode(roberta, ModelConfig(), [(WORDS[0], f"{WORDS[1]} {WORDS[1]}")], 6)
    assert shorter.ids.tolist() == [CLS, one, SEP, SEP, two, SEP]
