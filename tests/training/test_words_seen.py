"""Checkpoints at numbers of words: which step, kept through a resume, pushed by name."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import runs
from corpus import small_config, small_store
from hub_server import Hub, serve, use_endpoint
from hub_uploads import TOKEN, serve_uploads

import bert_jax
from bert_jax import cli
from bert_jax.config import words_seen
from bert_jax.config.schema import CheckpointConfig, Config
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import StoppedError, UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.publish.push_run import step_of
from bert_jax.reporting.status import read_status
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.workdir import words_reached
from bert_jax.workdir.description import read_description
from bert_jax.workdir.layout import Workdir

ENTRIES = ["aa", "bb", "cc", "##d", "."]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """160 documents of sentences of 2 to 6 words, each of which has two tokens."""
    folder, rng = tmp_path_factory.mktemp("words"), np.random.default_rng(0)
    sentences = [
        " ".join(rng.choice(["aad", "bbd", "ccd"], rng.integers(2, 7))) for _ in range(640)
    ]
    text = "\n\n".join("\n".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4))
    (folder / "text.txt").write_text(text)
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *ENTRIES])
    source = parse_source(f"lines:{folder / 'text.txt'}")
    return build_store([source], tokenizer, folder / "store", workers=1, progress=False)


def config_of(store: TokenStore, words: str) -> Config:
    """Packed rows; only the newest checkpoint is kept otherwise."""
    config = small_config(store)
    (phase,) = config.phases
    checkpoint = CheckpointConfig(
        every_steps=5, keep=1, keep_best=False, keep_at_words=words, write_attempts=1
    )
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, pairing="full_sentences"),
        model=dataclasses.replace(config.model, num_hidden_layers=1),
        phases=(
            dataclasses.replace(phase, steps=10, row_length=32, seq_length=16, examples_per_row=4),
        ),
        checkpoint=checkpoint,
    )


def test_words_per_token_are_those_of_the_text(store: TokenStore) -> None:
    assert store.words_per_token == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the client
def test_a_checkpoint_is_kept_where_so_many_words_were_seen(
    store: TokenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    config, run = config_of(store, "250,700,800,100M"), tmp_path / "run"
    with pytest.raises(StoppedError):
        pretrain(config, run, options=RunOptions(stop_after=4))
    log = capsys.readouterr()
    (each,) = read_description(Workdir.open(run))["words_per_step"]
    assert 0.6 * 8 * 32 / 2 < each < 8 * 32 / 2  # half as many words as tokens of text
    at = {words: int(-(-words // each)) for words in (250, 700, 800)}
    assert f"chck_250 at step {at[250]}, chck_700 at step {at[700]}, chck_800 at step" in log.out
    assert f"the run ends after {int(10 * each):,} words, before 100,000,000" in log.err
    assert "raise --config.phases[0].steps" in log.err
    pretrain(config, run)
    assert runs.complete_steps(run) == sorted({*at.values(), 10})
    kept = {c.step: c.kept for c in read_status(run).checkpoints}
    assert kept[at[800]] == ["800 words"]
    with serve_uploads() as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        words = ["convert", "export", f"--workdir={run}", "--push=me/b"]
        assert cli.main([*words, f"--out={tmp_path / 'a'}", "--revision=chck_800"]) == DONE
        assert cli.main([*words, f"--out={tmp_path / 'all'}", "--all_steps"]) == DONE
        names = {"main", "chck_250", "chck_700", "chck_800", "step-10"}
        assert hub.branches["me/b"].keys() == names
        card = hub.files("me/b", "chck_800")["README.md"].decode()
        assert f"trained for {at[800]} steps" in card
        assert cli.main([*words, f"--out={tmp_path / 'b'}", "--revision=chck_600"]) == FAILED
        line = capsys.readouterr().err
        assert f"no checkpoint of step {-(-600 // each):.0f}, only" in line
        assert "config.checkpoint.keep_at_words=600 keeps it" in line
        assert cli.main([*words, f"--out={tmp_path / 'b'}", "--revision=chck_1M"]) == FAILED
        assert f"ends after {int(10 * each):,} words" in capsys.readouterr().err
        pushed = {name: hub.files("me/b", name) for name in names}
        (run / "checkpoints" / str(at[700])).rename(tmp_path / "removed")
        damaged = run / "quarantine" / f"{at[250]}-1"
        damaged.parent.mkdir()
        (run / "checkpoints" / str(at[250])).rename(damaged)
        assert cli.main([*words, f"--out={tmp_path / 'rest'}", "--all_steps"]) == DONE
        said, has = capsys.readouterr().out, "config.checkpoint.keep_at_words has it, but"
        assert (
            f"not pushed: chck_250: {has} its checkpoint is damaged, and was moved to {damaged}"
            in said
        )
        assert f"not pushed: chck_700: {has} the checkpoint was removed, or the key was set" in said
    with serve(Hub({"me/b": pushed})) as downloads:
        use_endpoint(monkeypatch, downloads.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        for name in ("chck_800", "chck_250"):
            exported = bert_jax.load(tmp_path / f"all/step-{at[int(name[5:])]}")
            loaded = bert_jax.load(f"hf:me/b@{name}")
            np.testing.assert_array_equal(loaded.encode("aad bbd"), exported.encode("aad bbd"))


def test_a_store_without_a_count_of_words_is_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    config = dataclasses.replace(
        small_config(store), checkpoint=CheckpointConfig(keep_at_words="1M")
    )
    with pytest.raises(UserError, match=r"config\.checkpoint\.keep_at_words: .* build the store"):
        pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_first_step_after_which_so_many_words_were_seen() -> None:
    ends, per_step = (10, 20), (100.0, 0.1 * 3)
    assert words_seen.step_at(1, ends, per_step) == 1
    assert words_seen.step_at(100, ends, per_step) == 1
    assert words_seen.step_at(101, ends, per_step) == 2
    assert words_seen.step_at(1000, ends, per_step) == 10
    assert words_seen.step_at(1003, ends, per_step) == 20
    assert words_seen.step_at(117, (99,), [13 / 3]) == 27  # 117 / (13 / 3) > 27, for floats
    assert words_seen.step_at(1004, ends, per_step) is None
    assert words_seen.words_at(12, ends, per_step) == pytest.approx(1000.6)
    kept = words_seen.steps_to_keep((50, 60, 250, 10**6), ends, per_step)
    assert kept == {1: [50, 60], 3: [250]}
    assert words_seen.steps_to_keep((50,), ends, ()) == {}


def test_a_start_counts_from_its_step_on() -> None:
    count = (10, 20), (100.0, 10.0), (8, 5000.0)
    assert words_seen.step_at(5000, *count) == words_seen.step_at(1, *count) == 8
    assert words_seen.step_at(5001, *count) == 9
    assert words_seen.step_at(5250, *count) == 15
    assert words_seen.step_at(5301, *count) is None
    assert words_seen.words_at(9, *count) == 5100
    assert words_seen.words_at(20, *count) == 5300
    assert words_seen.steps_to_keep((5000, 5100, 9000), *count) == {9: [5100]}
    assert words_seen.step_at(5250, (5, *count[0]), (1e9, *count[1]), count[2]) == 15


@pytest.mark.slow
def test_a_run_that_carries_steps_goes_on_from_the_words_of_the_run_before(
    store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config, first = config_of(store, ""), tmp_path / "first"
    with pytest.raises(StoppedError):
        pretrain(config, first, options=RunOptions(stop_after=4))
    (each,) = read_description(Workdir.open(first))["words_per_step"]
    early, late = int(2 * each), int(4 * each + 2 * each) + 1
    changes = {
        "init": str(first),
        "init_optimizer": "carry",
        "phases[0].batch_size": 16,
        "checkpoint.keep_at_words": f"{early},{late}",
    }
    run, carried = tmp_path / "run", config.replace(changes)
    with pytest.raises(StoppedError):
        pretrain(carried, run, options=RunOptions(stop_after=6))
    known, log = read_description(Workdir.open(run)), capsys.readouterr()
    assert known["words_before"] == pytest.approx(4 * each)
    assert known["words_per_step"] == pytest.approx([2 * each])
    assert f"chck_{late} at step 6" in log.out
    assert f"chck_{early}: seen by step 4, where this run starts; not kept" in log.err
    with pytest.raises(UserError, match=f"starts at step 4, after {int(4 * each):,} words"):
        step_of(Workdir.open(run), f"chck_{early}")
    pretrain(carried.replace({"checkpoint.keep_at_words": f"{int(5 * each)},{late}"}), run)
    with pytest.raises(UserError, match=r"keep_at_words has .* was set when the run was past"):
        step_of(Workdir.open(run), f"chck_{int(5 * each)}")
    log = capsys.readouterr()
    assert f"chck_{int(5 * each)}: seen by step 6, where this run starts; not kept" in log.err
    assert f"chck_{late} at step 6" in log.out  # it is there
    assert read_description(Workdir.open(run))["words_before"] == known["words_before"]
    # The count of a run that an earlier version started so is not known.
    path = Workdir.open(run).config_json
    path.write_text(json.dumps({k: v for k, v in known.items() if k != "words_before"}))
    assert [c.kept for c in read_status(run).checkpoints if "words" in str(c.kept)] == []
    with pytest.raises(UserError, match="no count of words, as the run that it continues"):
        step_of(Workdir.open(run), "chck_1M")


def test_steps_of_a_model_without_a_count_are_refused() -> None:
    config = Config().replace({"init": "model", "checkpoint.keep_at_words": "1M"})
    description = {"words_per_step": [10.0], "data": {"init_step": 5}}
    with pytest.raises(UserError, match=r"model, whose steps .* leave the key out"):
        words_reached.check(config, description, "store")
    words_reached.check(config, description | {"words_before": 40.0}, "store")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("1M,10M", (10**6, 10**7)),
        ("(1_000_000, 10_000_000)", (10**6, 10**7)),
        ("(5,)", (5,)),
        ("2K, 1500, 2K", (1500, 2000)),
    ],
)
def test_numbers_of_words_are_a_list_with_commas(text: str, words: tuple[int, ...]) -> None:
    assert CheckpointConfig(keep_at_words=text).words == words


@pytest.mark.parametrize("text", ["1m", "10,,20", "0", "-1", "1e6", "1.5M", "M", ","])
def test_what_is_no_number_of_words_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"config\.checkpoint\.keep_at_words=.*give 1M,10M"):
        CheckpointConfig(keep_at_words=text)


def test_names_of_checkpoints_are_those_of_babylm() -> None:
    names = {10**6: "chck_1M", 10**7: "chck_10M", 10**9: "chck_1000M", 1500: "chck_1500"}
    for words, name in names.items():
        assert words_seen.revision_of(words) == name
        assert words_seen.words_of(name) == words
    assert words_seen.words_of("step-1000") is None
