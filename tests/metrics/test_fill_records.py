"""Guesses for hidden words in the records of a run, in TensorBoard and in Weights & Biases."""

import json
import types

import pytest
from runs import metric_writer
from test_tensorboard import summaries

from bert_jax.metrics import fill_records, run_records
from bert_jax.metrics.fill_records import Filled
from bert_jax.workdir.layout import Workdir

SEA = Filled("the ", "sea", " | was *calm*")
SHIP = Filled("a <b>", "ship", ".")
ONE, TWO = [("a", 0.5), ("sea", 0.25)], [("ship", 0.75)]


def start(step: int, *sentences: Filled) -> dict:
    return {"kind": "start", "step": step, "hidden": fill_records.hidden(sentences)}


def fills(step: int, *guesses: object) -> dict:
    return {"kind": "fills", "step": step, "guesses": [*guesses]}


def read(*records: dict) -> dict[str, dict]:
    written = json.loads(json.dumps(records))
    return {one.word: one.by_step for one in fill_records.read_fills(written)}


def test_steps_repeated_after_a_crash_have_the_later_guesses() -> None:
    """The run was killed after step 8, and resumed from 4 with one more sentence."""
    first = (start(0, SEA), fills(0, ONE), fills(4, TWO), fills(8, ONE))
    assert read(*first, start(4, SEA, SHIP)) == {"sea": {0: ONE, 4: TWO}}
    assert read(*first, start(4, SEA, SHIP), fills(8, TWO, TWO)) == {
        "sea": {0: ONE, 4: TWO, 8: TWO},
        "ship": {8: TWO},
    }


@pytest.mark.parametrize(
    "damage",
    [
        start(0), {"kind": "start", "step": 0, "hidden": 7}, {"kind": "start", "step": 0},
        {"kind": "start", "step": 0, "hidden": [{"before": "", "word": 3, "after": ""}, 4]},
    ],
)  # fmt: skip
def test_damaged_records_are_left_out(damage: dict) -> None:
    assert read(damage, fills(0, ONE)) == {}
    bad = (fills(4, [["a"], ["b", None], ["c", 1.0], 3]), {"kind": "fills", "step": 8})
    assert read(start(0, SEA), *bad) == {"sea": {4: [("c", 1.0)]}}


def test_the_guesses_go_everywhere_and_no_text_is_markup(tmp_path) -> None:
    sent = []
    writer = metric_writer(tmp_path)
    writer.wandb = types.SimpleNamespace(
        add_table=lambda *values: sent.append(values), close=lambda failed: None
    )
    writer.event("start", 0, 0, hidden=fill_records.hidden([SEA, SHIP]))
    writer.fills(4, 0, [SEA, SHIP], [ONE, TWO])
    writer.close()
    workdir = Workdir.open(tmp_path)
    sea, ship = fill_records.read_fills(run_records.records(workdir.metrics))
    assert (sea.after, sea.by_step, ship.by_step) == (SEA.after, {4: ONE}, {4: TWO})
    ((step, name, header, (first, _)),) = sent
    assert (step, name, len(header)) == (4, "fills", 3)
    assert first == ("the [MASK] | was *calm*", "sea", "a 50%  sea 25%")
    (shown,) = summaries(tmp_path / "tensorboard")["fills/text_summary"]
    _, _, *rows = shown.tensor.string_val[0].decode().splitlines()
    assert [row.count("|") for row in rows] == [4, 4]
    assert not set("*<>") & set("".join(rows))
