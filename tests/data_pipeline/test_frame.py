"""The special tokens around texts, as the post-processor of a tokenizer.json adds them."""

import json

import pytest
import tokenizers
from framed import framed

from bert_jax.convert.tokenizer_files import tokenizer_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

JOINED = {
    "[SEP]": (["[SEP]"], (0,)),
    "[SEP] [SEP]": (["[SEP]", "[SEP]"], (0, 0)),
    "[SEP] [CLS]:1": (["[SEP]", "[CLS]"], (0, 1)),
}


@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("between", JOINED)
def test_a_frame_is_that_of_the_post_processor(tokenizer: Tokenizer, between, second) -> None:
    if not second and ":1" in between:
        pytest.skip("no second type")
    read = framed(tokenizer, between=between, second=second)
    tokens, types = JOINED[between]
    assert [*map(read.token, read.frame.between)] == tokens
    assert read.frame[1:] == (types, second, "")
    encoding = tokenizers.Tokenizer.from_str(read.json.decode()).encode("hello world", "x y z")
    sizes = (encoding.sequence_ids.count(0), encoding.sequence_ids.count(1))
    assert read.frame.types(*sizes).tolist() == encoding.type_ids
    assert tokenizer_files(read, 64)["tokenizer.json"] == read.json


@pytest.mark.parametrize(("between", "unlike"), [(None, "text"), ("", "pair"), ("[CLS]:2", "pair")])
def test_without_one_it_is_that_of_the_separator_and_exported(
    tokenizer: Tokenizer, between, unlike
) -> None:
    read = framed(tokenizer, between=between)
    assert read.frame == tokenizer.frame._replace(unlike=unlike)
    files = tokenizer_files(read, 64)
    written = json.loads(files["tokenizer.json"])
    assert written == {**json.loads(read.json), "post_processor": written["post_processor"]}
    assert Tokenizer(files["tokenizer.json"]).frame == tokenizer.frame


def test_a_template_of_other_tokens_is_unlike(tokenizer: Tokenizer) -> None:
    spec = json.loads(tokenizer.json)
    first = spec["post_processor"]["single"][0]["SpecialToken"]
    first["id"] = "[SEP]"
    assert Tokenizer(json.dumps(spec).encode()).frame.unlike == "text"


def test_a_text_of_no_token_of_the_vocabulary_is_not_asked_for() -> None:
    """The letter a is not in it, and nothing stands for what is unknown."""
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "b"]
    encoder = tokenizers.Tokenizer(
        tokenizers.models.BPE({name: i for i, name in enumerate(names)}, [])
    )
    read = framed(Tokenizer(encoder.to_str().encode()), between="</s>")
    assert read.frame == ((2,), (0,), 1, "")
