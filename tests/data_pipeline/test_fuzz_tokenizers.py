"""tokenizer.json of each algorithm as nobody writes it: used, or refused in one line."""

import json
import random

import numpy as np
import pytest
from fuzz_cases import damaged

from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

CASES, GROUPS = 50, 2  # a second or so; ten times as many by night
TEXTS = ["", "the cat", "a" * 30 + "b", "[MASK] <mask> [PAD]", "\u0301\U0001f600 ünï \x00"]
WORDS = ("the", "cat", "ab", "##b", "a", "##a", ".", "x", "##x")


@pytest.fixture(scope="module")
def tokenizers() -> list[bytes]:
    """Of each algorithm."""
    text = [f"the cat sat on the mat {i} times and ran after a dog." for i in range(200)]
    trained = [Tokenizer.train(text, 45, model=model) for model in ("unigram", "bpe")]
    wordpiece = Tokenizer.from_vocab([*SPECIAL_TOKENS, *WORDS])
    return [tokenizer.json for tokenizer in (wordpiece, *trained)]


def use(data: bytes) -> None:
    """What is done with a tokenizer in a build and a run."""
    tokenizer = Tokenizer(data)
    ids = tokenizer.encode_batch(TEXTS)
    assert all(int(i) < tokenizer.vocab_size for i in np.concatenate(ids))
    for some in ids:
        tokenizer.decode(some.tolist())
    for index in range(tokenizer.vocab_size):
        tokenizer.token(index)
    assert tokenizer.word_starts.shape == (tokenizer.vocab_size,)


def attack(seed: int, tokenizers: list[bytes]) -> bool:
    """Whether a damaged tokenizer was refused, in one line; any other exception goes up."""
    rng = random.Random(seed)
    good = rng.choice(tokenizers)
    try:
        use(damaged(rng, json.loads(good), good))
    except UserError as error:
        said = str(error)
    else:
        return False
    assert "\n" not in said
    assert len(said) < 1000
    return True


@pytest.mark.parametrize(
    "group",
    [n if n < GROUPS else pytest.param(n, marks=pytest.mark.nightly) for n in range(10 * GROUPS)],
)
def test_a_damaged_tokenizer_is_used_or_refused(tokenizers: list[bytes], group: int) -> None:
    assert any(attack(seed, tokenizers) for seed in range(group * CASES, (group + 1) * CASES))


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": None},
        {"model": {"type": "WordPiece", "unk_token": "[UNKNOWN]"}},
        {"version": "9" * 5000},
    ],
)
def test_what_the_library_says_is_one_line(tokenizers: list[bytes], change: dict) -> None:
    """Found by such cases: a missing part, an unknown token that is not there, a page of text."""
    spec = json.loads(tokenizers[0])
    for key, value in change.items():
        spec[key] = {**spec[key], **value} if isinstance(value, dict) else value
    if spec["pre_tokenizer"] is None:
        del spec["pre_tokenizer"]
        spec["model"]["continuing_subword_prefix"] = ""
    with pytest.raises(UserError) as caught:
        use(json.dumps(spec).encode())
    assert len(str(caught.value)) < 500
