"""The attention of a text: every layout's, against transformers; `bert-jax look attention`."""

from pathlib import Path

import numpy as np
import pytest
from layout_models import LAYOUTS, layout_config, task_params

import bert_jax
from bert_jax import cli, exit_codes
from bert_jax.api.attention import attention
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

POSITIONS = 64
PAIR = ("The girl ran to a local pub", "to escape the din of her city.")


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_is_that_of_transformers(
    layout: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModel

    config = layout_config(
        layout, vocab_size=tokenizer.vocab_size, max_position_embeddings=POSITIONS
    )
    params = task_params(config, 1.5)  # so large that attention is not uniform
    export(params, config, tokenizer, tmp_path / "out", card=Card())
    model = bert_jax.load(tmp_path / "out")
    theirs = AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    for texts in (PAIR[:1], PAIR):
        found = attention(model, texts)
        encoded = model.tokenizer.encode_texts(list(texts))
        special = tokenizer.special
        ids = [special.cls, *encoded[0].tolist(), special.sep]
        ids += [*encoded[1].tolist(), special.sep] if len(texts) > 1 else []
        inputs = {"input_ids": torch.tensor([ids])}
        if config.type_vocab_size > 1:
            inputs["token_type_ids"] = torch.from_numpy(found.segments)[None]
        with torch.no_grad():
            out = theirs(**inputs, output_attentions=True).attentions
        wanted = np.stack([layer[0].numpy() for layer in out])
        assert found.weights.shape == wanted.shape
        assert wanted.std() > 0.01
        np.testing.assert_allclose(found.weights, wanted, atol=1e-5, err_msg=layout)


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = layout_config(
        "bert", vocab_size=tokenizer.vocab_size, max_position_embeddings=POSITIONS
    )
    out = tmp_path_factory.mktemp("model") / "exported"
    export(task_params(config), config, tokenizer, out, card=Card())
    return out


@pytest.mark.slow
def test_a_pair_is_one_row_of_two_segments(folder: Path) -> None:
    model = bert_jax.load(folder)
    found = attention(model, PAIR)
    first = len(model.tokens(PAIR[0])[0].ids)
    assert found.tokens[0] == "[CLS]"
    assert np.flatnonzero(found.special).tolist() == [0, first - 1, len(found.tokens) - 1]
    assert found.segments.tolist() == [0] * first + [1] * (len(found.tokens) - first)
    np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)
    assert found.weights[:, :, 0, -1].min() > 0  # the first text reads the second
    alone = attention(model, PAIR[:1])
    assert (alone.tokens, alone.segments.any()) == (found.tokens[:first], np.False_)


def test_a_text_that_the_model_cannot_hold_is_refused(folder: Path) -> None:
    model = bert_jax.load(folder)
    with pytest.raises(UserError, match=r"^82 tokens, but the model reads at most 64; shorten"):
        attention(model, ["a " * 80])
    with pytest.raises(UserError, match=r"^83 tokens, but the model reads at most 64; shorten"):
        attention(model, ["a " * 40, "a " * 40])
    for texts in ([""], ["a", " "]):
        with pytest.raises(UserError, match=r"' ?': no tokens; give a text with words$"):
            attention(model, texts)


@pytest.mark.slow
def test_the_command_writes_a_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["look", "attention", f"--model={folder}", f"--out={tmp_path / 'page.html'}"]
    assert cli.main(words) == exit_codes.USAGE
    assert "two that are read as a pair" in capsys.readouterr().err
    assert cli.main([*words, "The <b>girl</b>"]) == exit_codes.DONE
    said, page = capsys.readouterr().out, (tmp_path / "page.html").read_text()
    assert ": 3 layers of 4 heads, " in said
    assert "<b>" not in page
    assert "&lt;b&gt;girl" in page
