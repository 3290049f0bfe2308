"""A pass over held-out text: the same examples and masks for every run."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import small_config, small_store

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.metrics.step_metrics import SumAccumulator
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training.eval_setting import EvalSetting
from bert_jax.training.evaluation_pass import HeldOut


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def rows_seen(config: Config, store: TokenStore, **options: object) -> dict[str, np.ndarray]:
    """What an evaluation shows to the model, row by row, without the empty rows at the end."""
    seen: list[dict[str, np.ndarray]] = []

    def evaluate(params, batch):
        seen.append({name: np.asarray(array) for name, array in batch.items()})
        sums = {"loss": 0.0, "correct": 0.0, "count": 1.0}
        mlm = {**sums, "baseline_loss": 0.0, "baseline_correct": 0.0}
        rows = {name: jnp.ones(len(batch["input_ids"])) for name in sums}
        return {"mlm": mlm, "tokens": {"real": 1.0, "all": 1.0}, "rows": {"mlm": rows}}

    mesh = make_mesh(config.mesh, jax.devices()[:1])
    program = SimpleNamespace(rows=global_batch.batch_sharding(mesh), evaluate=evaluate)
    HeldOut(config, config.phases[0], store).evaluate(program, {}, **options)
    rows = {name: np.concatenate([batch[name] for batch in seen]) for name in seen[0]}
    full = rows["example_ids"].any(1)
    return {name: array[full] for name, array in rows.items()}


def test_the_unigram_knows_the_specials_where_they_are_predicted(store):
    """With RoBERTa's masks [CLS] and [SEP] are labels, at the frequencies that examples have."""
    config = small_config(store)
    evaluation = dataclasses.replace(config.evaluation, batches=0)
    config = dataclasses.replace(config, evaluation=evaluation)
    specials = [store.special.cls, store.special.sep]
    for masking in ("token", "roberta"):
        data = dataclasses.replace(config.data, pairing="doc_sentences", masking=masking)
        asked = dataclasses.replace(config, data=data)
        found = np.exp(HeldOut(asked, asked.phases[0], store).corpus.log_unigram[specials])
        seen = rows_seen(asked, store)
        tokens = seen["input_ids"].copy()
        rows, slots = np.nonzero(seen["masked_weights"])
        tokens[rows, seen["masked_positions"][rows, slots]] = seen["masked_labels"][rows, slots]
        real = tokens[seen["example_ids"] > 0]
        shares = [(real == special).mean() for special in specials]
        if masking == "token":
            assert max(found) < 0.01 < min(shares)
        else:
            total = len(store.train.tokens) / (1 - sum(shares))  # of text and specials
            expected = (np.array(shares) * total + 1) / (total + store.vocab_size)
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_other_examples_are_made_without_separators_that_they_cannot_have(store):
    config = small_config(store)
    data = dataclasses.replace(config.data, pairing="full_sentences", separators="sentences")
    config = dataclasses.replace(config, data=data)
    for pairing in ("single", "doc_sentences", None):
        form = EvalSetting.of(config, config.phases[0], pairing=pairing)
        wanted = "documents" if pairing == "single" else "sentences"
        assert form.data.separators == wanted


@pytest.mark.parametrize(
    ("objectives", "pairing", "measured"),
    [
        ("", None, "mlm,nsp"),
        ("", "single", "mlm"),
        ("mlm,nsp", "single", "mlm"),
        ("mlm", None, "mlm"),
    ],
)
def test_a_model_is_measured_on_what_it_learned_and_the_data_has_labels_for(
    objectives, pairing, measured, store
):
    config = dataclasses.replace(small_config(store), objectives=objectives)
    form = EvalSetting.of(config, config.phases[0], pairing=pairing)
    assert form.apply(config, config.phases[0]).objectives == measured


def test_data_without_labels_for_a_model_is_one_line(store):
    config = dataclasses.replace(small_config(store), objectives="nsp")
    form = EvalSetting.of(config, config.phases[0], pairing="single")
    with pytest.raises(UserError, match=r"^pairing=single: makes no labels for nsp, .* choose"):
        form.apply(config, config.phases[0])


def alter(config: Config, **phase: object) -> Config:
    return dataclasses.replace(config, phases=(dataclasses.replace(config.phases[0], **phase),))


def test_runs_are_measured_on_the_same_rows_and_masks(store):
    """Whatever their seed, batch size, micro-batches, packing, mixing and dynamic or static."""
    config = small_config(store)
    config = dataclasses.replace(
        config, evaluation=dataclasses.replace(config.evaluation, batches=0)
    )
    expected = rows_seen(config, store)
    assert expected["masked_weights"].any(1).all()
    data = dataclasses.replace(config.data, dupe_factor=3, source_weights="books=2")
    wsd = dataclasses.replace(config.optimizer, schedule="wsd", warmup_steps=9)
    others = (
        dataclasses.replace(config, seed=7),
        dataclasses.replace(
            config, phases=(*alter(config, steps=2).phases, *config.phases), optimizer=wsd
        ),  # the schedule of a run does not fit into one of its phases
        dataclasses.replace(config, data=data),
        dataclasses.replace(config, phases=(config.phases[0], *alter(config, steps=9).phases)),
        alter(config, batch_size=6),
        alter(config, batch_size=12, micro_batches=3),
        alter(config, examples_per_row=4, row_length=64),
    )
    for other in others:
        rows = rows_seen(other, store)
        assert set(rows) == set(expected)
        for name, array in rows.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_an_evaluation_can_be_ended_before_each_batch(store):
    begun = []

    def begin():
        begun.append(1)
        if len(begun) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        rows_seen(small_config(store), store, begin=begin)


def test_a_limit_takes_the_same_rows_for_the_same_number(store):
    config = small_config(store)
    limited = [
        rows_seen(
            dataclasses.replace(
                alter(config, batch_size=size, micro_batches=parts),
                evaluation=dataclasses.replace(config.evaluation, batches=batches),
            ),
            store,
        )["input_ids"]
        for size, parts, batches in ((2, 1, 4), (4, 1, 2), (4, 2, 2), (8, 1, 1))
    ]
    assert len(limited[0]) == 8
    for rows in limited[1:]:
        np.testing.assert_array_equal(rows, limited[0])


def test_sums_over_many_batches_stay_exact():
    """In float32 2**24 + 1 would be 2**24."""
    totals = SumAccumulator()
    for count in (2**24, 1, 1):
        totals.add({"mlm": {"count": np.float32(count)}})
    assert totals.sums["mlm"]["count"] == 2**24 + 2


def test_an_example_is_of_the_document_that_it_begins_in(store):
    """Against the pieces of `single`, whose examples never leave a document."""
    config = small_config(store)
    form = EvalSetting.parse("single/token", 32).apply(config, config.phases[0])
    held_out = HeldOut(form, form.phases[0], store)
    examples = held_out._batches.evaluation_examples(held_out.rows)
    documents = np.repeat(
        np.repeat(np.arange(len(store.held_out.document_lengths)), store.held_out.document_lengths),
        store.held_out.sentence_lengths,
    )
    seen = rows_seen(
        dataclasses.replace(form, evaluation=dataclasses.replace(form.evaluation, batches=0)), store
    )
    for row, first in enumerate(examples.first_token[:20]):
        ids = seen["input_ids"][row].copy()
        used = seen["masked_weights"][row] > 0
        ids[seen["masked_positions"][row][used]] = seen["masked_labels"][row][used]
        assert ids[1] == store.held_out.tokens[first]
        assert examples.source[row] == store.held_out.document_source[documents[first]]


def test_a_form_is_the_same_whatever_a_run_was_trained_with(store):
    config = small_config(store)
    other = alter(config, batch_size=4, examples_per_row=4, max_predictions=2)
    data = dataclasses.replace(config.data, masking="span", mask_rate=0.5, short_seq_prob=0.9)
    other = dataclasses.replace(other, seed=3, data=data)
    seen = []
    for each in (config, other):
        each = dataclasses.replace(each, evaluation=dataclasses.replace(each.evaluation, batches=0))
        applied = EvalSetting.parse("single/token", 32).apply(each, each.phases[0])
        seen.append(rows_seen(applied, store))
    assert set(seen[0]) == set(seen[1])
    for name, array in seen[0].items():
        np.testing.assert_array_equal(array, seen[1][name], err_msg=name)
    assert seen[0]["masked_weights"].sum(1).max() == 5  # 15 % of 32
