"""The short form of `make soak`: a fault at a random moment, and the same bits."""

import dataclasses
import secrets

import pytest
import soak

pytestmark = pytest.mark.processes


@pytest.mark.nightly
def test_a_disturbed_run_has_the_bits_of_one_that_was_not(tmp_path, capsys):
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    ended = soak.disturb(tmp_path, kills=1, counts=(2, 1), seed=seed, steps=90)
    assert len(ended.faults) == 1
    assert "all bits as undisturbed" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_run_with_other_bits_is_noticed(tmp_path, monkeypatch, capsys):
    """The soak itself can fail: here the second run has another seed."""
    made = soak.Soak
    other = lambda config, *rest: made(dataclasses.replace(config, seed=7), *rest)  # noqa: E731
    monkeypatch.setattr(soak, "Soak", other)
    with pytest.raises((AssertionError, soak.SoakError)):
        soak.disturb(tmp_path, kills=0, counts=(1,), seed=0, steps=5)
    assert "FAILED" in capsys.readouterr().out
