"""Which folders of a run count as checkpoints."""

import os

import pytest
from etils import epath

from bert_jax.checkpoint.catalog import (
    MARKER,
    DamagedError,
    all_steps,
    complete_steps,
    read_meta,
)


@pytest.fixture
def checkpoints(tmp_path) -> epath.Path:
    """Steps 10, whose write finished, and 20, whose did not."""
    for step in (10, 20):
        (tmp_path / str(step) / "state").mkdir(parents=True)
    (tmp_path / "10" / MARKER).touch()
    (tmp_path / "notes").mkdir()
    return epath.Path(tmp_path)


def test_only_a_folder_with_the_marker_is_a_complete_checkpoint(checkpoints):
    assert all_steps(checkpoints) == [10, 20]
    assert complete_steps(checkpoints) == [10]


def test_a_pipe_in_a_checkpoint_is_refused_unread(checkpoints):
    os.mkfifo(checkpoints / "10" / "state" / "array")
    with pytest.raises(DamagedError, match="state/array in it is not a regular file"):
        read_meta(checkpoints, 10)


def test_an_unfinished_checkpoint_is_refused(checkpoints):
    with pytest.raises(DamagedError, match="did not finish"):
        read_meta(checkpoints, 20)
