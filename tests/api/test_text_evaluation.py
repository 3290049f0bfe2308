"""`bert-jax evaluate --model`: pseudo-perplexity and minimal pairs, against a loop of PyTorch."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from corpus import small_store
from exported import TEXTS, random_params
from small import model_config

from bert_jax import cli
from bert_jax.ablation.intervals import wilson
from bert_jax.api.masked_scores import Scorer
from bert_jax.convert.sources import read_model
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.finetune.tasks.minimal_pairs import Sentence, read_minimal_pairs
from bert_jax.metrics.pseudo_likelihood import (
    METHODS,
    Method,
    masked_until,
    perplexity,
    preferences,
)
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

LINES = [
    "Hello world",
    "3.14 (über) naïve",
    "the cats, not the dogs",
    "hello",
    "Привет, мир. x y z",
]
PAIRS = [
    {"sentence_good": good, "sentence_bad": bad, "UID": uid, "field": "syntax", "pairID": i}
    for i, (good, bad, uid) in enumerate([
        ("hello world", "world hello hello", "order"),
        ("naïve café", "cafe world naive", "order"),
        ("Hello World", "hello world", "case"),  # the same tokens
    ])
]  # fmt: skip


def write_pairs(path: Path, pairs: list[dict] = PAIRS) -> Path:
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    return path


def sentences(texts: list[str]) -> list[Sentence]:
    return [Sentence(text, "file", row) for row, text in enumerate(texts, 1)]


def scores(folder: Path, texts: list[str], method: Method) -> np.ndarray:
    scorer = Scorer(read_model(str(folder)))
    return scorer.log_likelihoods(scorer.read(sentences(texts)), method)


def evaluated(capsys: pytest.CaptureFixture[str], *flags: str) -> dict:
    assert cli.main(["evaluate", *flags, "--json"]) == DONE
    found: dict = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert cli.main(["evaluate", *flags]) == FAILED
    *_, line = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.torch
@pytest.mark.filterwarnings("default")  # transformers' own deprecations are not ours
@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_a_loop_over_transformers(exported, method):
    import torch
    from transformers import AutoTokenizer, BertForMaskedLM

    folder, _, _ = exported
    theirs = BertForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    texts = [*LINES, TEXTS[2], "helloworld nold " * 3]
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt")
        (ids,), words, total = encoded["input_ids"], encoded.word_ids(), 0.0
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            last = place + 1 if method == "token" else len(ids)
            for other in range(place, last):
                if words[other] == words[place]:
                    masked[other] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = theirs(masked[None]).logits[0, place]
            total += float(torch.log_softmax(logits.double(), 0)[ids[place]])
        expected.append(total)
    assert len(tokenizer(texts[-1])["input_ids"]) > 16  # so rows have two lengths
    np.testing.assert_allclose(scores(folder, texts, method), expected, rtol=1e-5, atol=1e-5)
    (not_asked,) = (one for one in METHODS if one != method)
    assert not np.allclose(scores(folder, texts, not_asked), expected, rtol=1e-5, atol=1e-5)


def test_every_way_of_masking_has_a_flag(capsys):
    assert cli.main(["evaluate", "--help"]) == DONE
    assert f"<{'|'.join(METHODS)}>" in capsys.readouterr().out


def test_the_rest_of_a_word_is_masked_with_its_token():
    words = np.array([0, 1, 1, 1, 2])
    assert masked_until(words, "token").tolist() == [1, 2, 3, 4, 5]
    assert masked_until(words, "word_l2r").tolist() == [1, 4, 4, 4, 5]


def test_a_text_without_a_cut_at_spaces_has_words(tokenizer):
    """As Gemma's, whose normalizer writes the spaces before the pre-tokenizer sees them."""
    entries = ["<pad>", "<unk>", "<bos>", "<eos>", "<mask>", "a", "b", "▁", "▁a"]
    special = [
        {"id": i, "content": entry, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True} for i, entry in enumerate(entries[:5])
    ]  # fmt: skip
    spec = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": {entry: i for i, entry in enumerate(entries)}, "merges": [["▁", "a"]]},
    }  # fmt: skip
    ((ids, words),) = Tokenizer(json.dumps(spec).encode()).encode_words(["ab ab b"])
    assert [entries[i] for i in ids] == ["a", "b", "▁a", "b", "▁", "b"]
    assert words.tolist() == [0, 0, 1, 1, 2, 2]
    ((_, words),) = tokenizer.encode_words(["hello, world"])
    assert words.tolist() == sorted(words.tolist())
    assert words.max() == 2  # the comma is a word


def test_a_perplexity_is_of_tokens_and_its_interval_of_lines():
    sums, tokens = np.array([-3.0, -5.0, -8.0]), np.array([2, 2, 4])
    mean, margin = perplexity(sums, tokens)
    assert mean == 2.0
    assert 0 < margin < 2
    assert math.isnan(perplexity(sums[:1], tokens[:1])[1])


def test_a_tie_is_half():
    found = preferences(np.array([-1.0, -2.0, -3.0]), np.array([-2.0, -2.0, -2.0]))
    assert found.tolist() == [1, 0.5, 0]


def test_the_interval_of_a_share_is_wilsons():
    """81 of 263: Newcombe 1998 (Stat. Med. 17, 857-872), table I, method 3."""
    low, high = wilson(81 / 263, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson(1.0, 20).high == 1
    assert 0.8 < wilson(1.0, 20).low < 1


def test_pairs_are_counted_by_phenomenon(exported, tmp_path, capsys):
    folder, _, _ = exported
    path = write_pairs(tmp_path / "pairs.jsonl")
    found = evaluated(capsys, f"--model={folder}", f"--pairs={path}")
    texts = [str(pair[key]) for pair in PAIRS for key in ("sentence_good", "sentence_bad")]
    own = scores(folder, texts, "token").reshape(-1, 2)
    right = (np.sign(own[:, 0] - own[:, 1]) + 1) / 2
    assert right[2] == 0.5
    assert {row["measure"]: (row["n"], row["value"]) for row in found["rows"]} == {
        "accuracy": (3, pytest.approx(right.mean())),
        "accuracy, field syntax": (3, pytest.approx(right.mean())),
        "accuracy, UID case": (1, 0.5),
        "accuracy, UID order": (2, pytest.approx(right[:2].mean())),
    }
    assert all(0 <= row["low"] <= row["value"] <= row["high"] <= 1 for row in found["rows"])
    assert "ties, each counted as half: 1" in found["notes"]
    of_folder = evaluated(capsys, f"--model={folder}", f"--pairs={tmp_path}")
    assert of_folder["rows"] == found["rows"]


def test_a_folder_of_pairs_is_read_but_for_hidden_files(tmp_path):
    """Such as a Mac writes; endings may be in capitals, as of a file that is given itself."""
    for name, pair in zip(("b.JSONL", "c.ndjson", "a.jsonl"), PAIRS, strict=True):
        write_pairs(tmp_path / name, [pair])
    for name in ("._a.jsonl", ".jsonl", ".more.jsonl"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7\xff")
    (tmp_path / "readme.txt").write_text("not a pair")
    found = read_minimal_pairs(tmp_path)
    assert [Path(pair.good.path).name for pair in found] == ["a.jsonl", "b.JSONL", "c.ndjson"]


def test_a_length_is_compiled_once(exported):
    """Also for the last batch of it, which has fewer rows; in any order of the texts."""
    scorer = Scorer(read_model(str(exported[0])))
    texts = [*LINES, *(f"hello {'world ' * n}" for n in range(16, 30))]
    found = scorer.log_likelihoods(scorer.read(sentences(texts)))
    assert scorer._log_probabilities._cache_size() == 2  # rows of 16 and of 32
    backwards = scorer.log_likelihoods(scorer.read(sentences(texts[::-1])))
    np.testing.assert_allclose(backwards[::-1], found, rtol=1e-6)


def test_the_perplexity_of_a_file_leaves_out_blank_lines(exported, tmp_path, capsys):
    folder, _, _ = exported
    (tmp_path / "text.txt").write_text("\n\n".join(LINES) + "\n")
    found = evaluated(capsys, f"--model={folder}", f"--text={tmp_path}/text.txt")
    value, loss = found["rows"]
    assert value["value"] == pytest.approx(math.exp(loss["value"]))
    assert loss["value"] == pytest.approx(-scores(folder, LINES, "token").sum() / loss["n"])
    assert value["low"] < value["value"] < value["high"]
    assert f"in {len(LINES)} lines" in found["what"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence_good": "a"', "pairs.jsonl: row 2: "),
        ('{"sentence_good": "a", "sentence_bda": "b"}', "row 2: no key 'sentence_bad'; did you"),
        ('{"sentence_good": " ", "sentence_bad": "b"}', "row 2: sentence_good is empty"),
        ('{"sentence_good": "b ", "sentence_bad": "b"}', "row 2: sentence_good and sentence_bad"),
        ('{"sentence_good": "a", "sentence_bad": ["b"]}', "row 2: 'sentence_bad' should be text"),
        ('{"sentence_good": "a [MASK]", "sentence_bad": "b"}', "row 2: [MASK] is a special token"),
        (
            f'{{"sentence_good": "a", "sentence_bad": "{"hello " * 39}"}}',
            "row 2: 39 tokens, but the model reads 38; split the text",
        ),
        (r'{"sentence_good": "a", "sentence_bad": "\u200b"}', "has no token; leave it out"),
    ],
    ids=range(8),
)
def test_bad_pairs_are_one_line(line, message, exported, tmp_path, capsys):
    path = write_pairs(tmp_path / "pairs.jsonl", PAIRS[:1])
    path.write_text(f"{path.read_text()}{line}\n")
    said = refused(capsys, f"--model={exported[0]}", f"--pairs={path}")
    assert message in said
    assert str(path) in said


def test_a_model_without_the_head_is_one_line(tokenizer, tmp_path, capsys):
    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    for name in ("mlm", "nsp"):
        card = Card(objectives=(name,))
        export(random_params(config, (name,)), config, tokenizer, tmp_path / name, card=card)
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    store = small_store(tmp_path / "store").path
    for on in (f"--pairs={pairs}", f"--store={store}"):
        said = refused(capsys, f"--model={tmp_path}/nsp", on)
        assert "no masked-language-model head, so it predicts no masked tokens; give" in said
    said = refused(capsys, f"--model={tmp_path}/mlm", f"--store={store}", "--pairing=sop")
    assert "so pairing=sop has nothing to measure; full_sentences" in said
