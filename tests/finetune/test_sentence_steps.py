"""Steps that train sentence vectors: the form of a batch changes no loss; what a run resumes to."""

from pathlib import Path

import jax
import numpy as np
import pytest
from runs import read_meta
from small_task import WORDS, pairs_config, write_pairs
from task_steps import SGD, batches_of, trained

from bert_jax.config.schema import Config
from bert_jax.errors import StoppedError
from bert_jax.finetune.runs import finetune
from bert_jax.training.options import RunOptions

PADDED = {"phases[0]__examples_per_row": 1}
CACHED = {"phases[0]__micro_batches": 2}
FORMS = {
    "padded on 8 devices": PADDED | {"mesh__data": 8},
    "cached": CACHED,
    "2 devices, cached": CACHED | {"mesh__data": 2},
    "fsdp": {"mesh__data": 2, "mesh__fsdp": 2} | PADDED,
    "a mesh of all kinds, cached": CACHED | {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2},
}
LOSSES = {
    "both directions": (
        "sentence_pairs",
        {"task__directions": "both", "task__dimensions": "16,8", "task__dense": "32:GELU,24"},
    ),
    "cosent": (  # at the rate of the others its loss jumps, and so do differences in rounding
        "scored_pairs", {"task__loss": "cosent", "optimizer__learning_rate": 0.01},
    ),
    "labels": ("labeled_pairs", {"task__normalize": False, "task__dense": "24:residual"}),
}  # fmt: skip
USUAL = ("both directions", "2 devices, cached")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


def sgd_config(folder: Path, loss: str, **changes: object) -> Config:
    name, settings = LOSSES[loss]
    sgd = {key.replace(".", "__"): value for key, value in SGD.items()}
    return pairs_config(folder, name, **{**sgd, **settings, **changes})


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, tuple]:
    """The first steps of each loss on one device, packed, in one batch."""
    return {}


def marks_of(loss: str, form: str) -> list[pytest.MarkDecorator]:
    if (loss, form) == USUAL:
        return []
    slow = loss == USUAL[0] and form != "fsdp"
    return [pytest.mark.slow if slow else pytest.mark.nightly]


@pytest.mark.parametrize(
    ("loss", "form"),
    [pytest.param(loss, form, marks=marks_of(loss, form)) for loss in LOSSES for form in FORMS],
)
def test_the_form_of_a_batch_changes_no_loss_and_no_update(
    folder: Path, plain: dict, loss: str, form: str
) -> None:
    """Three steps like SGD's: Adam with a large eps. The loss is of all examples of a batch, on
    whatever devices and in however many micro-batches they are."""
    changes = FORMS[form]
    if loss not in plain:
        plain[loss] = trained(sgd_config(folder, loss), 3)
    losses, before, params = plain[loss]
    devices = int(np.prod([changes.get(f"mesh__{axis}", 1) for axis in ("data", "fsdp")]))
    others, _, after = trained(sgd_config(folder, loss, **changes), 3, devices)
    np.testing.assert_allclose(others, losses, rtol=1e-6)
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), before, params))
    assert max(moved) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=2e-6), params, after)


@pytest.mark.slow
def test_rows_of_more_strips_change_no_loss_and_no_update(folder: Path) -> None:
    """Anchors are short and positives fill a strip, so that rows have room for other pairs, too."""
    draw = np.random.default_rng(0).choice
    rows = [f"{draw(WORDS)}\t{' '.join(draw(WORDS, 8))}" for _ in range(80)]
    (folder / "long.tsv").write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    large = {"phases[0]__batch_size": 64, "phases[0]__seq_length": 10}
    config = sgd_config(folder, "both directions", **large).replace(
        {"task.data": str(folder / "long.tsv"), "phases[0].examples_per_row": 64}
    )
    batches = batches_of(config)[1]
    assert (batches.sequences, batches.strips) == (2, 4)
    losses, _, params = trained(config, 1)
    others, _, padded = trained(config.replace("phases[0].examples_per_row", 1), 1)
    np.testing.assert_allclose(losses, others, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=2e-6), padded, params)


@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_to_the_same_bits(folder: Path, tmp_path: Path) -> None:
    """With dropout, whose masks both passes of a cached step draw again."""
    dropout = {"model__hidden_dropout_prob": 0.1, "task__epochs": 1.0, **CACHED}
    config = pairs_config(
        folder, "sentence_pairs", mesh__data=-1, checkpoint__every_steps=4, **dropout
    )
    with pytest.raises(StoppedError):
        finetune(config, tmp_path / "stopped", options=RunOptions(stop_after=5))
    finetune(config, tmp_path / "stopped")
    finetune(config, tmp_path / "whole")
    meta, other = (read_meta(tmp_path / where, 9) for where in ("stopped", "whole"))
    assert meta["fingerprints"] == other["fingerprints"]
    assert meta["evaluation"] == other["evaluation"]
