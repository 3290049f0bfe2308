"""The learning rate against plain Python formulas, within a phase and over several."""

import dataclasses
from typing import Any, get_args

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.config.config_files import load
from bert_jax.config.optimizer_settings import ScheduleName, ScheduleSpan
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.optimizers.schedule import (
    SCHEDULES,
    bert_polynomial,
    fairseq_polynomial,
    make_schedule,
)


def published(step: int, peak: float, warmup: int, total: int, power: float = 1.0) -> float:
    """optimization.py:32-54: polynomial decay from step 0, overridden in the warmup."""
    decayed = (peak - 0) * (1 - min(step, total) / total) ** power
    is_warmup = float(step < warmup)
    return (1 - is_warmup) * decayed + is_warmup * peak * step / max(warmup, 1)


def fairseqs(updates: int, peak: float, warmup: int, total: int, power: float = 1.0) -> float:
    """fairseq's polynomial decay to an end rate of 0, after so many updates."""
    if warmup > 0 and updates <= warmup:
        return peak * (updates / float(warmup))
    if updates >= total:
        return 0.0
    return peak * (1 - (updates - warmup) / (total - warmup)) ** power


def minicpms(updates: int, peak: float, warmup: int, total: int, power: float = 1.0) -> float:
    """MiniCPM's three stages, the last one polynomial over a tenth of the steps."""
    decay = round(0.1 * total)
    if updates < warmup:
        return peak * updates / warmup
    if updates < total - decay:
        return peak
    return peak * (max(total - updates, 0) / max(decay, 1)) ** power


def modernberts(updates: int, peak: float, warmup: int, total: int, power: float = 1.0) -> float:
    """ModernBERT's trapezoid: 1 - sqrt of the share of the decay that is done."""
    decay = round(0.1 * total)
    if updates < warmup:
        return peak * updates / warmup
    done = min(max(updates - (total - decay), 0) / max(decay, 1), 1)
    return 0.0 if updates >= total else peak * (1 - done**0.5)


ORIGINALS = {
    "bert": published,
    "fairseq": fairseqs,
    "wsd": minicpms,
    "trapezoid": modernberts,
}


def with_phases(*phases: dict[str, Any], **optimizer: object) -> Config:
    """The base config with phases of these values."""
    config = load("base")
    (phase,) = config.phases
    return dataclasses.replace(
        config,
        phases=tuple(dataclasses.replace(phase, **values) for values in phases),
        optimizer=dataclasses.replace(config.optimizer, **optimizer),
    )


def test_schedule_is_the_originals():
    rate = make_schedule(load("base"))
    for step in (0, 1, 9_999, 10_000, 10_001, 500_000, 999_999, 1_000_000, 2_000_000):
        want = published(step, 1e-4, 10_000, 1_000_000)
        np.testing.assert_allclose(rate(step), want, rtol=2e-5, atol=1e-12)
    assert rate(0) == 0
    assert float(rate(10_000)) == pytest.approx(9.9e-5)


def test_schedule_without_warmup_starts_at_the_peak():
    rate = bert_polynomial(ScheduleSpan(steps=10, learning_rate=1.0, warmup_steps=0))
    assert [float(rate(step)) for step in (0, 5, 10)] == [1.0, 0.5, 0.0]


def test_a_power_of_zero_keeps_the_rate():
    rate = bert_polynomial(
        ScheduleSpan(steps=10, learning_rate=0.5, warmup_steps=2, decay_power=0.0)
    )
    assert [float(rate(step)) for step in (0, 1, 2, 9, 10)] == [0.0, 0.25, 0.5, 0.5, 0.5]


@given(
    steps=st.integers(1, 2_000_000),
    warmup=st.integers(0, 20_000),
    power=st.sampled_from([0.5, 1.0, 2.0]),
    share=st.floats(0, 1.5),
)
def test_every_shape_is_the_formula(steps: int, warmup: int, power: float, share: float) -> None:
    rate = bert_polynomial(ScheduleSpan(steps, 3e-4, warmup, power))
    for step in (0, warmup, max(warmup - 1, 0), int(share * steps), steps - 1, steps):
        want = published(step, 3e-4, warmup, steps, power)
        np.testing.assert_allclose(rate(step), want, rtol=1e-5, atol=1e-12)


def test_every_schedule_has_a_name_and_an_original():
    assert SCHEDULES.keys() == ORIGINALS.keys() == set(get_args(ScheduleName))


def test_robertas_schedule_falls_from_the_peak_at_the_end_of_the_warmup():
    rate = make_schedule(load("roberta_base"))
    points = {0: 0.0, 1: 5e-8, 9_999: 5e-4 * 0.9999, 10_000: 5e-4, 67_500: 2.5e-4, 125_000: 0.0}
    for step, want in points.items():
        np.testing.assert_allclose(rate(step), want, rtol=1e-6, atol=1e-12, err_msg=str(step))
    assert float(rate(10_001)) < float(rate(10_000))


@given(
    steps=st.integers(1, 2_000_000),
    warmup=st.integers(0, 20_000),
    power=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    share=st.floats(0, 1.5),
)
def test_fairseqs_schedule_is_its_formula(
    steps: int, warmup: int, power: float, share: float
) -> None:
    rate = fairseq_polynomial(ScheduleSpan(steps, 3e-4, warmup, power))
    for step in (0, 1, max(warmup - 1, 0), warmup, warmup + 1, int(share * steps), steps - 1):
        want = fairseqs(step, 3e-4, warmup, steps, power)
        np.testing.assert_allclose(rate(step), want, rtol=1e-5, atol=1e-12, err_msg=str(step))
    assert float(rate(max(steps, warmup + 1))) == 0


def test_wsd_at_its_corners():
    rate = make_schedule(
        with_phases({"steps": 1000}, schedule="wsd", learning_rate=2.0, warmup_steps=10)
    )
    points = {0: 0, 1: 0.2, 9: 1.8, 10: 2, 500: 2, 900: 2, 901: 1.98, 950: 1, 999: 0.02, 1000: 0}
    for step, want in points.items():
        np.testing.assert_allclose(rate(step), want, rtol=1e-6, atol=1e-12, err_msg=str(step))


def test_wsd_without_a_decay_is_constant():
    config = with_phases({"steps": 9}, schedule="wsd", learning_rate=2.0, warmup_steps=2)
    config = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, decay_share=0.0)
    )
    rate = make_schedule(config)
    assert [float(rate(step)) for step in range(10)] == [0.0, 1.0, *[2.0] * 7, 0.0]


@pytest.mark.parametrize("over", ["run", "phase"])
def test_warmup_and_decay_longer_than_the_steps_are_one_line(over):
    values = {"schedule": "wsd", "schedule_over": over, "decay_share": 0.5}
    with_phases({"steps": 10}, {"steps": 10}, **values, warmup_steps=5)
    with pytest.raises(UserError) as error:
        with_phases({"steps": 10}, {"steps": 10}, **values, warmup_steps=11)
    steps = {"run": (10, 20), "phase": (5, 10)}[over]
    assert str(error.value) == (
        f'config.optimizer.schedule="wsd": 11 steps of warmup and {steps[0]} of decay '
        f"are more than the {steps[1]} steps of the {over}; lower warmup_steps "
        "or decay_share, or raise the steps"
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_phase_follows_the_schedule_by_that_name(name):
    config = with_phases(
        {"steps": 10}, {"steps": 20, "learning_rate": 0.5, "warmup_steps": 8},
        schedule=name, schedule_over="phase", learning_rate=1.0, warmup_steps=4, decay_power=2.0,
    )  # fmt: skip
    rate = jax.jit(make_schedule(config))
    for step in range(30):
        phase = (step, 1.0, 4, 10) if step < 10 else (step - 10, 0.5, 8, 20)
        want = ORIGINALS[name](*phase, power=2.0)
        np.testing.assert_allclose(rate(step), want, rtol=1e-5, atol=1e-9, err_msg=str(step))


def test_the_papers_two_phases_are_one_schedule():
    config = load("wiki_books_base")
    assert [(p.steps, p.seq_length) for p in config.phases] == [(900_000, 128), (100_000, 512)]
    rate, one_phase = make_schedule(config), make_schedule(load("base"))
    for step in (0, 9_999, 10_000, 899_999, 900_000, 900_001, 999_999):
        assert float(rate(step)) == float(one_phase(step))
    assert float(rate(900_000)) == pytest.approx(1e-5)


def test_nvidias_two_phases_at_their_published_points():
    config = load("large_lamb_64k_nvidia")
    first, second = 7038, 1563
    assert [phase.steps for phase in config.phases] == [first, second]
    rate = jax.jit(make_schedule(config))
    points = {
        0: 0.0,
        1: 6e-3 / 2000,
        1999: 6e-3 * 1999 / 2000,
        2000: 6e-3 * (1 - 2000 / 7038) ** 0.5,
        7037: 6e-3 * (1 / 7038) ** 0.5,
        7038: 0.0,  # the second phase warms up from zero
        7039: 4e-3 / 200,
        7238: 4e-3 * (1 - 200 / 1563) ** 0.5,
        7038 + 1562: 4e-3 * (1 / 1563) ** 0.5,
        7038 + 1563: 0.0,
        9000: 0.0,
    }
    for step, want in points.items():
        np.testing.assert_allclose(rate(step), want, rtol=1e-5, atol=1e-12, err_msg=str(step))
    for step in range(0, first + second, 97):
        phase = (4e-3, 200, second) if step >= first else (6e-3, 2000, first)
        want = published(step - first * (step >= first), *phase, power=0.5)
        np.testing.assert_allclose(rate(step), want, rtol=1e-5, atol=1e-12, err_msg=str(step))


@pytest.mark.parametrize("over", ["run", "phase"])
def test_rates_of_a_base_width_are_in_inverse_proportion_to_the_width(over) -> None:
    changes = {
        "optimizer.schedule_over": over, "optimizer.learning_rate": 3e-4, "model.hidden_size": 128,
        "phases[0].learning_rate": None if over == "run" else 1e-4, "model.num_attention_heads": 2,
    }  # fmt: skip
    (plain,) = load("base", changes).schedule_spans
    (scaled,) = load("base", changes | {"optimizer.base_width": 256}).schedule_spans
    assert scaled == dataclasses.replace(plain, learning_rate=2 * plain.learning_rate)
    assert plain.learning_rate == (3e-4 if over == "run" else 1e-4)


def test_a_phase_without_its_own_rate_has_the_optimizers():
    config = with_phases(
        {"steps": 10},
        {"steps": 20, "learning_rate": 0.5},
        {"steps": 40, "warmup_steps": 0},
        schedule_over="phase",
        learning_rate=1.0,
        warmup_steps=4,
    )
    rate = make_schedule(config)
    assert [float(rate(step)) for step in (2, 5)] == [0.5, 0.5]
    assert [float(rate(step)) for step in (10, 12, 20)] == [0.0, 0.25, 0.25]
    assert [float(rate(step)) for step in (30, 50, 70, 71)] == [1.0, 0.5, 0.0, 0.0]


def test_steps_may_be_an_array():
    config = with_phases({"steps": 3}, {"steps": 4}, schedule_over="phase", warmup_steps=0)
    rate = make_schedule(config)
    steps = np.arange(8)
    np.testing.assert_array_equal(rate(steps), [rate(int(step)) for step in steps])
