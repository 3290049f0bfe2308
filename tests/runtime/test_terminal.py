"""What a person reads of a run, whatever it learns."""

import io
import os
from collections.abc import Callable

import pytest
import rich.console

from bert_jax.distributed.watchdog import ProcessExit
from bert_jax.reporting.held_out_table import explanation
from bert_jax.reporting.held_out_table import table as table_of
from bert_jax.runtime import console
from bert_jax.runtime.console import clock, table
from bert_jax.training.progress import RunDisplay, held_out


def scalars(*objectives: str) -> dict[str, float]:
    """Held-out figures of some objectives: losses 1.5, 2.5, …; baselines 0.25 above."""
    found = {"loss": 4.0, "tokens_per_second": 1234.0}
    for i, name in enumerate(objectives):
        found |= {f"{name}/loss": i + 1.5, f"{name}/accuracy": 0.5}
        found |= {f"{name}/baseline_loss": i + 1.75, f"{name}/baseline_accuracy": 0.25}
        if name in ("nsp", "sop"):
            found[f"{name}/source_accuracy"] = 0.375
    return found


MLM = "MLM loss 1.500 (unigram 1.750), accuracy 50.0% (25.0%)"
PAIR = "loss 2.500 (constant 2.750), accuracy 50.0% (25.0%, source alone 37.5%)"


@pytest.mark.parametrize(
    ("objectives", "line"),
    [
        (("mlm",), MLM),
        (("mlm", "nsp"), f"{MLM}; NSP {PAIR}"),
        (("mlm", "sop"), f"{MLM}; SOP {PAIR}"),
        (("mlm", "sbo"), f"{MLM}; SBO loss 2.500 (unigram 2.750), accuracy 50.0% (25.0%)"),
    ],
)
def test_every_objective_stands_beside_its_baseline(objectives, line):
    assert held_out(scalars(*objectives)) == line


def test_figures_stand_beside_their_number_and_margin():
    """Those that are recorded: an earlier version recorded none, one document has no margin."""
    sizes = {"documents": 8.0, "mlm/count": 5200.0, "mlm/accuracy_margin": float("nan")}
    found = scalars("mlm") | sizes | {"mlm/loss_margin": 0.04829}
    line = "MLM loss 1.500 ± 0.048 (unigram 1.750), accuracy 50.0% (25.0%)"
    assert held_out(found) == f"{line}; 5,200 MLM predictions in 8 documents, ± 95 %"
    _, rows = table_of(found)
    assert rows == [("Masked tokens (MLM)", "1.500 ± 0.048", "1.750", "50.0%", "25.0%")]
    assert "Measured on 5,200 MLM predictions in 8 documents; ± is half" in explanation(found)
    for without in (scalars("mlm"), scalars("mlm") | {"documents": 8.0}):
        assert held_out(without) == "MLM loss 1.500 (unigram 1.750), accuracy 50.0% (25.0%)"
        assert "±" not in explanation(without)
        assert table_of(without)[1] == [("Masked tokens (MLM)", "1.500", "1.750", "50.0%", "25.0%")]


@pytest.mark.parametrize(("phases", "said"), [(1, "step 5/20  loss"), (2, "step 5/20  phase 2/2")])
def test_a_line_says_the_phase_where_there_are_several(phases, said, capsys, monkeypatch):
    monkeypatch.setattr(console, "console", console.rich.console.Console(soft_wrap=True))
    with RunDisplay(20, 0, phases) as display:
        display.phase(phases - 1, "5 steps")
        display.train(5, scalars("mlm", "sop"), 3725)
    out = capsys.readouterr().out
    assert said in out
    assert "mlm 1.500  sop 2.500  1,234 tokens/s  1:02:05 left" in out
    assert ("phase 2 of 2: 5 steps" in out) == (phases == 2)


def test_columns_are_as_wide_as_what_stands_in_them():
    assert table(("step", "why"), [("7", "newest"), ("1,000", "end")]) == (
        " step  why\n    7  newest\n1,000  end"
    )
    assert clock(59.6) == "0:01:00"


@pytest.mark.parametrize("show", [console.elapsed, lambda what, out: console.progress(what, 3)])
def test_a_process_that_ends_amid_a_display_leaves_a_terminal_as_it_was(
    show: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a compiler holds the main thread: nothing is unwound."""
    screen = io.StringIO()
    terminal = rich.console.Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(console, "console", terminal)
    at_exit: list[str] = []
    monkeypatch.setattr(os, "_exit", lambda code: at_exit.append(screen.getvalue()))
    with show("compiling", terminal):
        ProcessExit("host-0").end(42, "SIGINT: stopped")
        shown, later = at_exit[0], screen.getvalue()
        assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown again"
        if show is console.elapsed:
            assert shown.rindex("\x1b[2K") > shown.rindex("compiling"), "the spinner is erased"
        assert shown == later
