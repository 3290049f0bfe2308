"""Runs whose words and output bias start from counts of their store."""

import shutil
import signal
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import safetensors.numpy
from corpus import SPECIAL, small_config, small_store
from gcs_emulator import emulated
from processes import Job, assert_same_bits, deep_config, run
from runs import complete_steps
from stores import StoredDocument, store_of_text, write_store

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import StoppedError, UserError
from bert_jax.exit_codes import LOST
from bert_jax.publish.export import run_export
from bert_jax.training import loop, word_start
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir

WORDS = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"
COUNTED = {
    "model.initializer": "random",
    "model.word_initializer": "cooccurrence",
    "model.output_bias_initializer": "frequencies",
    "model.cooccurrence.window": 3,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("counted") / "store")


def unmoved(store: TokenStore, **changes: object) -> Config:
    """A run of one step whose learning rate is zero."""
    config = small_config(store).replace({"phases[0].steps": 1, "optimizer.learning_rate": 0.0})
    return config.replace({key.replace("__", "."): value for key, value in changes.items()})


def start(config: Config, run: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of an export of the run, which moves nothing."""
    loop.pretrain(config, run)
    run_export(run, run.parent / f"{run.name}_exported")
    return safetensors.numpy.load_file(run.parent / f"{run.name}_exported/model.safetensors")


@pytest.fixture(scope="module")
def random(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return start(unmoved(store), tmp_path_factory.mktemp("random") / "run")


@pytest.fixture(scope="module")
def counted(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return start(unmoved(store, **COUNTED), tmp_path_factory.mktemp("counts") / "run")


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe"])
def test_the_entries_of_every_tokenizer_start_from_counts(kind: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    lines = [line for topic in topics.values() for line in topic.splitlines() if line][:500]
    text.write_text("\n\n".join(lines), "utf-8")
    tokenizer = Tokenizer.train(lines, 400, model=kind)
    store = store_of_text(f"lines:{text}", tokenizer, tmp_path / "store")
    config = small_config(store).replace(COUNTED)
    words = word_start.count_words(config.model, store)["words"]
    counts = np.asarray(store.train.token_counts)
    often = counts >= word_start.RAREST
    often[list(store.special)] = False
    np.testing.assert_array_equal(words.any(axis=1), often)
    assert often.sum() > 100


def test_words_and_bias_start_from_counts_and_nothing_else_changes(store, random, counted) -> None:
    config, found = unmoved(store, **COUNTED), counted
    for name in random:
        if name not in (WORDS, BIAS):
            np.testing.assert_array_equal(found[name], random[name], err_msg=name)
    special, words = len(SPECIAL), found[WORDS]
    np.testing.assert_array_equal(words[:special], random[WORDS][:special])
    lengths = np.linalg.norm(words[special:], axis=1)
    size = np.sqrt((random[WORDS] ** 2).sum(axis=1).mean())
    np.testing.assert_allclose(lengths, size, rtol=0.03)
    assert np.ptp(lengths) < 1e-6
    vectors = word_start.count_words(config.model, store)["words"][special:]
    np.testing.assert_allclose(words[special:] / lengths[:, None], vectors, atol=1e-6)
    logs = np.log(store.train.token_counts + 1)
    np.testing.assert_allclose(found[BIAS], logs - logs.mean(), atol=1e-6)


def test_heads_of_the_first_layer_start_from_counts(store, tmp_path) -> None:
    guided = COUNTED | {"model.initializer": "positional_heads"}
    without = start(unmoved(store, **guided), tmp_path / "without")
    config = unmoved(store, **guided, model__positional_heads__pmi=2.0)
    found = start(config, tmp_path / "with")
    arrays = word_start.count_words(config.model, store)
    layer = "bert.encoder.layer.0.attention"
    value, output = f"{layer}.self.value.weight", f"{layer}.output.dense.weight"
    for name in without:
        if name not in (value, output):
            np.testing.assert_array_equal(found[name], without[name], err_msg=name)
    width = config.model.hidden_size
    np.testing.assert_array_equal(found[value].T.reshape(width, -1), np.hstack(arrays["values"]))
    np.testing.assert_array_equal(found[output].T, np.vstack(arrays["outputs"]))


def test_maps_of_neighbours_need_vectors_of_words(store) -> None:
    with pytest.raises(UserError, match=r"positional_heads\.pmi=1.0 needs vectors of words"):
        unmoved(store, model__initializer="positional_heads", model__positional_heads__pmi=1.0)


@pytest.mark.parametrize("text", ["unknown", "rare"])
def test_a_text_without_an_entry_that_is_seen_three_times_starts_at_random(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = iter(range(5, 100))
    made = [[1] * 8 if text == "unknown" else [next(words) for _ in range(8)] for _ in range(4)]
    store = write_store(
        tmp_path / "store",
        tokenizer=Tokenizer.from_vocab([*SPECIAL, *(f"w{i}" for i in range(95))]),
        train=[StoredDocument([one[:4], one[4:]]) for one in made],
        held_out=[StoredDocument([[1, 1]])] * 2,
    )
    guided = COUNTED | {"model.initializer": "positional_heads"}
    config = unmoved(store, **guided, model__positional_heads__pmi=2.0)
    assert [*word_start.count_words(config.model, store)] == ["bias"]
    without = small_config(store).replace({**guided, "model.word_initializer": "random"})
    assert "words and heads start from random values: no entry is seen 3 times or more" in (
        word_start._line(config.model, store, {})
    )
    found = start(config, tmp_path / "counted")
    wanted = start(without.replace({"phases[0].steps": 1, "optimizer.learning_rate": 0.0}),
                   tmp_path / "random")  # fmt: skip
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def test_layers_that_share_their_parameters_have_no_positional_heads(store) -> None:
    shared = {"model__num_hidden_groups": 1, "model__initializer": "positional_heads"}
    with pytest.raises(UserError, match=r"num_hidden_groups=1; set config\.model\.initializer="):
        unmoved(store, **shared)


def test_rare_entries_keep_their_random_values(random, tmp_path) -> None:
    texts = [[5 + k % 40 for k in range(90)] for _ in range(3)] + [[60, 61, 60]]
    store = write_store(
        tmp_path / "store",
        tokenizer=Tokenizer.from_vocab([*SPECIAL, *(f"w{i}" for i in range(95))]),
        train=[StoredDocument([text]) for text in texts],
        held_out=[StoredDocument([texts[0]])] * 2,
    )
    found = start(unmoved(store, **COUNTED), tmp_path / "counted")[WORDS]
    assert (found != random[WORDS]).any(axis=1).tolist() == [5 <= i < 45 for i in range(100)]


def test_published_sets_every_start_back(store, random, tmp_path) -> None:
    published = COUNTED | {"model.near_identity.head": True, "model.initializer": "published"}
    config = unmoved(store, **published)
    found = start(config, tmp_path / "two")
    for name in random:
        np.testing.assert_array_equal(found[name], random[name], err_msg=name)
    assert config.model.word_initializer == "random"
    assert not config.model.near_identity.head
    assert not Workdir.open(tmp_path / "two").word_start.exists()


def stopped(config: Config, run: Path) -> None:
    """A run that ends after it has counted and before its first checkpoint."""

    def never(*_: object, **__: object) -> None:
        raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_train", never)
        with pytest.raises(StoppedError):
            loop.pretrain(config, run)


def test_a_run_started_again_counts_nothing_twice(store, counted, tmp_path, monkeypatch) -> None:
    config = unmoved(store, **COUNTED)
    stopped(config, tmp_path / "run")
    monkeypatch.setattr(word_start, "count_words", None)
    np.testing.assert_array_equal(start(config, tmp_path / "run")[WORDS], counted[WORDS])


def test_a_run_that_resumes_needs_no_counts(store, counted, tmp_path, monkeypatch) -> None:
    config = unmoved(store, **COUNTED).replace({"phases[0].steps": 2})
    with pytest.raises(StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=1))
    monkeypatch.setattr(word_start, "start_words", None)
    Path(Workdir.open(tmp_path / "run").word_start).unlink()
    np.testing.assert_array_equal(start(config, tmp_path / "run")[WORDS], counted[WORDS])


def test_a_kept_start_is_exported_as_step_0_and_resumed_from(store, counted, tmp_path) -> None:
    config = unmoved(store, **COUNTED, checkpoint__keep_start=True, checkpoint__keep=1)
    learning = config.replace({"optimizer.learning_rate": 1e-2, "phases[0].steps": 3})
    loop.pretrain(learning, tmp_path / "whole")
    assert complete_steps(tmp_path / "whole") == [0, 3]
    run_export(tmp_path / "whole", tmp_path / "first", 0)
    found = safetensors.numpy.load_file(tmp_path / "first/model.safetensors")
    for name in counted:
        np.testing.assert_array_equal(found[name], counted[name], err_msg=name)
    with pytest.raises(StoppedError):
        loop.pretrain(learning, tmp_path / "again", options=RunOptions(stop_after=1))
    shutil.rmtree(Workdir.open(tmp_path / "again").checkpoints / "1")
    loop.pretrain(learning, tmp_path / "again")
    assert_same_bits(tmp_path / "again", tmp_path / "whole")


@pytest.mark.parametrize("change", ["store", "settings", "damage"])
def test_counts_of_others_are_never_used(change, store, counted, tmp_path, capsys) -> None:
    config, run = unmoved(store, **COUNTED), tmp_path / "run"
    if change == "store":
        other = small_store(tmp_path / "other", documents=30)
        stopped(unmoved(other, **COUNTED), run)
    elif change == "settings":
        stopped(config.replace({"model.cooccurrence.window": 1}), run)
    else:
        stopped(config, run)
        path = Path(Workdir.open(run).word_start)
        path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    np.testing.assert_array_equal(start(config, run)[WORDS], counted[WORDS])
    said = "".join(capsys.readouterr())
    why = "damaged (" if change == "damage" else "made from other data or with other settings;"
    assert said.count(f"word_start.npz: {why}") == said.count("; computed again") == 1


def test_too_few_entries_for_the_width_stay_random(store, tmp_path, capsys) -> None:
    wide, window = {"model.hidden_size": 128}, {"model.cooccurrence.window": 1}
    random = start(unmoved(store, **wide), tmp_path / "random")
    found = start(unmoved(store, **COUNTED | wide | window), tmp_path / "wide")
    np.testing.assert_array_equal(found[WORDS], random[WORDS])
    assert "100 entries have no vectors of 128 dimensions" in "".join(capsys.readouterr())


def test_a_model_to_start_from_comes_first(store, random, tmp_path, capsys) -> None:
    loop.pretrain(unmoved(store), tmp_path / "random")
    again = unmoved(store, **COUNTED, init=str(tmp_path / "random"))
    found = start(again, tmp_path / "again")
    np.testing.assert_array_equal(found[WORDS], random[WORDS])
    assert "not counts of the store" in "".join(capsys.readouterr())


def test_a_start_changes_no_program(store) -> None:
    from bert_jax.parallel.mesh import make_mesh
    from bert_jax.training.step import make_step_functions
    from bert_jax.training.store_data import StoreData

    def lowered(config: Config) -> str:
        mesh = make_mesh(config.mesh)
        data = StoreData(store).phase(config, config.phases[0], mesh)
        program = make_step_functions(config, mesh, data.held_out.corpus)
        return program.lower_train(data.train.batch(0, rows=[]), data.shape).as_text()

    assert lowered(unmoved(store, **COUNTED)) == lowered(unmoved(store))


@pytest.mark.slow
@pytest.mark.processes
def test_processes_buckets_and_kills_change_no_bit(store, tmp_path, monkeypatch) -> None:
    config = deep_config(store, steps=4).replace(
        COUNTED
        | {"model.initializer": "positional_heads", "model.max_position_embeddings": 64}
        | {"model.positional_heads.pmi": 3.0, "model.positional_heads.unread": 0.0}
    )
    one, bucket = tmp_path / "one", "gs://bucket/counted"
    run(config, one, tmp_path, processes=1)
    run(config, tmp_path / "four", tmp_path, processes=4, one_core=True)
    assert_same_bits(one, tmp_path / "four")
    with emulated(monkeypatch, "bucket") as server:
        with Job(config, bucket, tmp_path, processes=2) as job:
            job.wait_for(lambda: "counted/word_start.npz" in server.names("bucket"), "the counts")
            job.send(signal.SIGKILL, 0)
            assert job.codes() == [-signal.SIGKILL, LOST]
        run(config, bucket, tmp_path, processes=2)
        assert_same_bits(bucket, one)
