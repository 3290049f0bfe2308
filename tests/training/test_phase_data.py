"""Values of a phase that default to those of `config.data`: masks, mixture and pairing."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import SPECIAL, WORDS, small_config, small_store
from processes import assert_same_bits
from runs import read_meta, read_records
from stores import StoredDocument, write_store

from bert_jax import cli
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict, to_dict, updated
from bert_jax.configs import base
from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.plan.cache import plan_digest
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import StoppedError, UserError
from bert_jax.training.batches import empty_batch, phase_batches, plan_spec
from bert_jax.training.eval_setting import EvalSetting
from bert_jax.training.evaluation_pass import HeldOut
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions

THREE = {  # the lines of a config that say 30 → 15 → 5 %
    "phases[0].mask_rate": 0.3,
    "phases[1].mask_rate": 0.15,
    "phases[2].mask_rate": 0.05,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("phases") / "store", documents=400)


def phases(store: TokenStore, count: int, changes: dict[str, Any] | None = None) -> Config:
    """Phases of 10 steps of 8 rows of 32 tokens, with the CLI's keys changed."""
    config = small_config(store)
    phase = dataclasses.replace(config.phases[0], steps=10)
    several = dataclasses.replace(config, phases=(phase,) * count)
    return from_dict(updated(to_dict(several), changes or {}), Config)


def batch(config: Config, store: TokenStore, index: int, step: int = 0) -> Batch:
    phase = config.phases[index]
    return phase_batches(config, store, store.train, phase).batch(step)


def by_example(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and predictions of each example of a batch."""
    ids = batch["example_ids"]
    number = np.arange(len(ids))[:, None] * 100 + ids
    line, slot = np.nonzero(batch["masked_weights"])
    masked = number[line, batch["masked_positions"][line, slot]]
    examples, tokens = np.unique(number[ids > 0], return_counts=True)
    return tokens, np.array([(masked == example).sum() for example in examples])


def rounded(tokens: np.ndarray, rate: float) -> list[int]:
    return [max(1, round(size * rate)) for size in tokens.tolist()]


@pytest.mark.parametrize("packed", [False, True])
def test_each_phase_masks_its_share_in_three_lines(store: TokenStore, packed: bool) -> None:
    config = phases(store, 3, THREE)
    if packed:
        each = {"examples_per_row": 8, "row_length": 96}
        shapes = tuple(dataclasses.replace(phase, **each) for phase in config.phases)
        config = dataclasses.replace(config, phases=shapes)
    for index, rate in enumerate((0.3, 0.15, 0.05)):
        found = batch(config, store, index)
        tokens, predictions = by_example(found)
        assert predictions.tolist() == rounded(tokens, rate)
        slots = math.ceil(rate * 32)
        assert found["masked_positions"].shape[1] == slots * (3 if packed else 1)


def test_the_rate_falls_linearly_in_a_phase(store: TokenStore) -> None:
    """The slots are those of the first step, packed or not."""
    own = {"phases[0].mask_rate": 0.4, "phases[0].mask_rate_end": 0.1}
    packed = {"phases[0].examples_per_row": 8, "phases[0].row_length": 96}
    for more in ({}, packed):
        config = phases(store, 2, own | more)
        for step in (0, 3, 9):
            found = batch(config, store, 0, step)
            tokens, predictions = by_example(found)
            assert predictions.tolist() == rounded(tokens, 0.4 - 0.3 * step / 10)
            assert found["masked_positions"].shape[1] == 13 * (3 if more else 1)
        tokens, predictions = by_example(batch(config, store, 1))
        assert predictions.tolist() == rounded(tokens, 0.15)


def test_shares_and_whole_words_are_those_of_the_phase(store: TokenStore) -> None:
    own = {
        "phases[0].mask_share": 1.0, "phases[0].random_share": 0.0,
        "phases[1].mask_share": 0.4, "phases[1].random_share": 0.3,
        "phases[2].masking": "whole_word",
    }  # fmt: skip
    config = phases(store, 4, own)
    for index, shares in enumerate(((1.0, 0.0), (0.4, 0.3), (0.8, 0.1), (0.8, 0.1))):
        masked = changed = count = 0
        for step in range(40):
            found = batch(config, store, index, step)
            line, slot = np.nonzero(found["masked_weights"])
            now = found["input_ids"][line, found["masked_positions"][line, slot]]
            is_mask = now == store.special.mask
            masked += int(is_mask.sum())
            changed += int((~is_mask & (now != found["masked_labels"][line, slot])).sum())
            count += len(line)
        for got, share in zip((masked, changed), shares, strict=True):
            assert abs(got - count * share) <= 3 * math.sqrt(count * share * (1 - share)) + 0.02
    modes = [phase_batches(config, store, store.train, p)._assembler._masking.masking
             for p in config.phases]  # fmt: skip
    assert modes == ["token", "token", "whole_word", "token"]


def test_values_that_are_the_datas_change_nothing(store: TokenStore) -> None:
    """Not the digest of a plan, not a batch; and phases that name none are as without others."""
    plain = phases(store, 2)
    same = {
        "phases[0].mask_rate": 0.15, "phases[0].mask_rate_end": 0.15,
        "phases[0].mask_share": 0.8, "phases[0].random_share": 0.1,
        "phases[0].masking": "token", "phases[0].source_weights": "",
        "phases[0].language_smoothing": 1.0, "phases[0].pairing": plain.data.pairing,
    }  # fmt: skip
    named = phases(store, 2, same)
    other = phases(store, 2, {"phases[0].mask_rate": 0.3, "phases[0].source_weights": "wiki=2"})
    digests = [
        [plan_digest(store.train, plan_spec(c, store.train, p), store.sources) for p in c.phases]
        for c in (plain, named, other)
    ]
    assert digests[0] == digests[1]
    assert digests[0][1] == digests[2][1] != digests[2][0]
    for index in range(2):
        for name, array in batch(plain, store, index, 3).items():
            np.testing.assert_array_equal(array, batch(named, store, index, 3)[name])
    for name, array in batch(plain, store, 1).items():
        np.testing.assert_array_equal(array, batch(other, store, 1)[name])


@pytest.mark.slow
def test_the_baseline_of_training_is_of_what_the_phase_predicts(
    store: TokenStore, tmp_path: Path
) -> None:
    """RoBERTa's masks predict [CLS] and [SEP], in a phase of its own as in the whole run."""
    full = {"data.pairing": "full_sentences", "log_every_steps": 1, "phases[0].steps": 3}
    found = {}
    for key, of_phase in (("token", "roberta"), ("roberta", "roberta"), ("roberta", "token")):
        own = {"data.masking": key, "phases[0].masking": of_phase}
        workdir = tmp_path / f"{key}-{of_phase}"
        pretrain(phases(store, 1, full | own), workdir)
        found[key, of_phase] = read_records(workdir, "train")[0]["mlm/baseline_loss"]
    assert found["token", "roberta"] == found["roberta", "roberta"]
    pretrain(phases(store, 1, full), tmp_path / "plain")
    plain = read_records(tmp_path / "plain", "train")[0]["mlm/baseline_loss"]
    assert found["roberta", "token"] == plain


def test_source_weights_are_those_of_the_phase(store: TokenStore) -> None:
    config = phases(store, 2, {"phases[0].source_weights": "books=0"})
    sources = [set(batch(config, store, i)["pair_sources"].ravel().tolist()) for i in range(2)]
    assert sources == [{0}, {0, 1}]


def test_smoothing_by_phase_of_twenty_languages(tmp_path: Path) -> None:
    """mmBERT's .7, .5, .3, of sizes as 1 / rank."""
    languages = [f"l{i}" for i in range(20)]
    documents = [
        StoredDocument([[len(SPECIAL) + language] * 10], language=language)
        for language in range(20)
        for _ in range(6000 // (language + 1))
    ]
    words = [*SPECIAL, *(f"w{i}" for i in range(WORDS))]
    made = write_store(
        tmp_path / "store", tokenizer=Tokenizer.from_vocab(words, lowercase=True),
        train=documents, held_out=documents[:1], sources=("text",), languages=languages,
    )  # fmt: skip
    smoothings = (0.7, 0.5, 0.3)
    own = {f"phases[{i}].language_smoothing": a for i, a in enumerate(smoothings)}
    config = phases(made, 3, own | {"data.pairing": "single", "data.short_seq_prob": 0.0})
    expected = (0.183, 0.132, 0.092)
    for phase, share, smoothing in zip(config.phases, expected, smoothings, strict=True):
        plan = phase_batches(config, made, made.train, phase)._plans.epoch(0)
        language = made.train.tokens[plan.piece_start] - len(SPECIAL)
        found = float((language == 0).mean())
        powers = np.arange(1, 21) ** -smoothing
        exact = powers[0] / powers.sum()
        assert abs(exact - share) < 0.001
        deviation = math.sqrt(share * (1 - share) / len(language))
        assert abs(found - exact) < 3 * deviation


def test_held_out_text_is_read_as_the_data_say(store: TokenStore) -> None:
    """In every phase, so that its losses are comparable."""
    own = {**THREE, "phases[1].mask_rate_end": 0.4, "phases[2].masking": "whole_word",
           "phases[2].source_weights": "books=0"}  # fmt: skip
    plain, config = phases(store, 3), phases(store, 3, own)
    for index in range(3):
        rows = [HeldOut(c, c.phases[index], store)._make(0) for c in (plain, config)]
        for name, array in rows[0].items():
            np.testing.assert_array_equal(array, rows[1][name])
        forms = [EvalSetting.of(c, c.phases[index]) for c in (plain, config)]
        assert forms[0] == forms[1]
        assert forms[1].apply(config, config.phases[index]).phases[0].own == {}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"phases[1].mask_rate": 0}, r"phases\[1\]\.mask_rate=0 should be from 0 to 1, but not 0 "),
        ({"phases[1].mask_rate": 1.0}, r"phases\[1\]\.mask_rate=1\.0 should be from 0 to 1, but "),
        ({"data.mask_rate": 0.0}, r"data\.mask_rate=0\.0 should be from 0 to 1, but not 0 or 1$"),
        ({"data.mask_rate": 1.0}, r"data\.mask_rate=1\.0 should be from 0 to 1, but not 0 or 1$"),
        (
            {"phases[1].mask_share": 0.95},
            r"phases\[1\]\.mask_share \+ config\.data\.random_share exceeds 1; lower one$",
        ),
        (
            {"phases[0].mask_share": 0.7, "phases[0].random_share": 0.4},
            r"phases\[0\]\.mask_share \+ config\.phases\[0\]\.random_share exceeds 1; lower one$",
        ),
        ({"phases[0].mask_rate_end": 0.1}, r"phases\[0\]\.mask_rate_end=0\.1 is where .* set "),
        ({"phases[1].masking": "wholeword"}, r"phases\[1\]\.masking='wholeword'; did you mean who"),
        ({"phases[1].language_smoothing": 11}, r"phases\[1\]\.language_smoothing=11 should be "),
        ({"phases[1].pairing": "nps"}, r"phases\[1\]\.pairing='nps'; did you mean nsp\?$"),
        ({"phases[1].pairing": "single"}, r'phases\[1\]\.pairing="single" has other labels than '),
        ({"phases[1].source_weights": "books"}, r'phases\[1\]\.source_weights: "books" is not of '),
    ],
    ids=str,
)
def test_a_wrong_value_of_a_phase_is_one_line(
    changes: dict[str, Any], line: str, store: TokenStore
) -> None:
    with pytest.raises(UserError, match=rf"^config\.{line}"):
        phases(store, 2, changes)


@pytest.mark.parametrize(
    ("weights", "line"),
    [
        ("book=2", 'no source is called "book"; did you mean books?'),
        ("wiki=0,books=0", 'every source of the "train" split has weight 0; give one a positive'),
        ("empty=1,wiki=0,books=0", 'source "empty" has no text in the "train" split; leave it out'),
    ],
)
def test_a_phase_whose_source_has_no_text_is_one_line(
    weights: str, line: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    made = [StoredDocument([rng.integers(5, 100, 9).tolist()] * 3, source=i % 2) for i in range(20)]
    words = [*SPECIAL, *(f"w{i}" for i in range(WORDS))]
    store = write_store(
        tmp_path / "store", tokenizer=Tokenizer.from_vocab(words, lowercase=True),
        train=made, held_out=made[:2], sources=("wiki", "books", "empty"),
    )  # fmt: skip
    config = phases(store, 2, {"phases[1].source_weights": weights})
    phase_batches(config, store, store.train, config.phases[0])
    with pytest.raises(UserError) as error:
        phase_batches(config, store, store.train, config.phases[1])
    assert str(error.value).startswith(f"config.phases[1].source_weights: {line}")


@pytest.mark.slow
def test_a_run_resumes_with_the_same_bits(store: TokenStore, tmp_path: Path) -> None:
    """Stopped within a decay, and in the phase after it; `data batch` shows what it saw."""
    own = {
        "phases[0].mask_rate": 0.3, "phases[0].mask_rate_end": 0.15,
        "phases[0].source_weights": "books=0.5", "phases[1].mask_rate": 0.05,
        "phases[0].steps": 6, "phases[1].steps": 4,
    }  # fmt: skip
    config = phases(store, 2, own).replace({"checkpoint.every_steps": 2, "log_every_steps": 1})
    pretrain(config, tmp_path / "whole")
    for stop in (3, 8):
        with pytest.raises(StoppedError):
            pretrain(config, tmp_path / "parts", options=RunOptions(stop_after=stop))
    pretrain(config, tmp_path / "parts")
    assert_same_bits(tmp_path / "whole", tmp_path / "parts")
    assert read_meta(tmp_path / "whole", 10)["config"]["phases"][0]["mask_rate_end"] == 0.15
    words = ("data", "batch", f"--workdir={tmp_path / 'whole'}", "--step=5")
    assert cli.main([*words, f"--out={tmp_path / 'rows.npz'}"]) == 0
    with np.load(tmp_path / "rows.npz") as rows:
        np.testing.assert_array_equal(
            rows["masked_positions"], batch(config, store, 0, 5)["masked_positions"]
        )
    with pytest.raises(UserError, match=r"another config\.phases\[0\]\.mask_rate"):
        pretrain(config.replace({"phases[0].mask_rate": 0.4}), tmp_path / "whole")


def test_inspect_shows_the_values_of_the_phase(
    store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("model.max_position_embeddings=32", "phases[0].seq_length=32", "phases[0].steps=10",
             "phases[0].max_predictions=5", "phases[0].mask_rate=0.3",
             "phases[0].mask_rate_end=0.15", "phases[0].mask_share=1.0",
             "phases[0].random_share=0.0")  # fmt: skip
    flags = [f"--config.{each}" for each in sizes]
    for split, rate, mask in (("train", "30.00%, by steps towards 15.00%", "100.00%"),
                              ("held_out", "15.00%, rounded", "80.00%")):  # fmt: skip
        words = ("data", "inspect", f"--store={store.path}", f"--split={split}")
        assert cli.main([*words, "--config=tiny", *flags]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert rate in shown
        assert mask in shown


def test_inspect_counts_the_steps_of_a_rate_that_changes(
    store: TokenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later rows of the epoch would have the last rate, which no step of the phase has."""
    sizes = ("model.max_position_embeddings=32", "phases[0].seq_length=32", "phases[0].steps=2",
             "phases[0].max_predictions=16", "phases[0].mask_rate=0.4", "phases[0].batch_size=8",
             "phases[0].mask_rate_end=0.1")  # fmt: skip
    words = ("data", "inspect", f"--store={store.path}", "--config=tiny")
    assert cli.main([*words, *(f"--config.{each}" for each in sizes)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(r" rows 16 of [\d,]+ ", shown)
    (found,) = re.findall(r"predictions / tokens ([\d.]+)%", shown)
    assert 25 < float(found) < 40  # 40 % and 25 % of each example


def test_examples_are_written_as_the_phase_reads_them(
    store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("model.max_position_embeddings=32", "phases[0].seq_length=32", "phases[0].steps=10",
             "phases[0].max_predictions=5", "phases[0].batch_size=8",
             "phases[0].mask_rate=0.3")  # fmt: skip
    words = ["data", "export-examples", "--config=tiny", f"--store={store.path}",
             *(f"--config.{each}" for each in sizes)]  # fmt: skip
    assert cli.main([*words, f"--out={tmp_path / 'out'}"]) == 0
    (about,) = (tmp_path / "out").glob("*.json")
    assert "0.3" in json.dumps(json.loads(about.read_text()))
    packed = ("phases[0].mask_rate_end=0.1", "phases[0].examples_per_row=4")
    more = [f"--config.{each}" for each in packed]
    assert cli.main([*words, *more, f"--out={tmp_path / 'other'}"]) == 1
    assert "config.phases[0] is packed, and its mask rate changes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value", ["masking=whole_word", "mask_rate=0.05", "source_weights=books=0", "mask_share=0.7"]
)
def test_a_flag_sets_a_value_of_a_later_phase(
    value: str, store: TokenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Phases that a config copies keep the types of values that it does not set."""
    words = ["data", "inspect", f"--store={store.path}", "--config=wiki_books_base", "--phase=1"]
    assert cli.main([*words, f"--config.phases[1].{value}"]) == 0
    capsys.readouterr()
    key = value.partition("=")[0]
    assert cli.main([*words, f"--config.phases[1].{key}x=1"]) == 1
    assert capsys.readouterr().err.endswith(f"; did you mean phases[1].{key}?\n")


def test_the_compiler_sees_the_slots_of_the_phase(store: TokenStore) -> None:
    config = phases(store, 3, {**THREE, "phases[2].mask_rate_end": 0.4})
    for index, phase in enumerate(config.phases):
        shapes = {name: (x.shape[1], x.dtype) for name, x in empty_batch(config, phase).items()}
        made = batch(config, store, index)
        assert {name: (x.shape[1], x.dtype) for name, x in made.items()} == shapes


@pytest.mark.parametrize("split", [base.short_then_long, lambda p: base.batch_ramp(p, first=64)])
def test_a_changing_rate_is_set_after_a_split(split: Any) -> None:
    phase = base.get_config().phases[0]
    split(phase)
    phase.mask_rate_end = 0.15
    with pytest.raises(UserError, match=r"^mask_rate_end=0\.15: set it after a phase was split"):
        split(phase)


def test_the_shipped_configs_name_none() -> None:
    for name in ("base", "wiki_books_base", "roberta_base"):
        assert all(phase.own == {} for phase in load(name).phases)
