"""`bert-jax status`: where a run stands, from its folder alone."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from corpus import small_store, two_phases
from etils import epath
from flax import nnx
from jax.extend.core import jaxprs_in_params

from bert_jax import cli, heads, metrics, workdir
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import Config
from bert_jax.errors import UserError
from bert_jax.status import read, render


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    store = small_store(tmp_path_factory.mktemp("store"))
    config = two_phases(store, (60, 40), log_every_steps=10)
    return dataclasses.replace(
        config,
        checkpoint=dataclasses.replace(
            config.checkpoint, every_steps=10, keep=2, keep_every_steps=40
        ),
    )


SCALARS = {
    "loss": 5.0, "mlm/loss": 4.25, "mlm/accuracy": 0.1, "mlm/baseline_loss": 4.5,
    "mlm/baseline_accuracy": 0.05, "nsp/loss": 0.75, "nsp/accuracy": 0.6,
    "nsp/baseline_loss": 0.69, "nsp/baseline_accuracy": 0.5, "nsp/source_accuracy": 0.55,
}  # fmt: skip


def folder_of_a_run(path: Path, config: Config, done: int, *, age: float = 0.0) -> Path:
    """What a run that has done so many steps leaves, without training it."""
    description = {
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "data": {"tokenizer": "t", "train": "a", "held_out": "h", "rows_per_epoch": [80, 50]},
    }
    workdir.claim(epath.Path(path), description, resuming_at=None)
    speed = {"step_seconds": 0.5, "tokens_per_second": 1000.0}
    checkpoints = Checkpoints(path, config.checkpoint, config.phase_ends)
    with (path / "metrics.jsonl").open("w") as log:
        for step in range(10, done + 1, 10):
            phase = config.phase_at(step - 1)[0]
            held_out = {**SCALARS, "loss": 5.0 if step in (20, 90) else 6.0}
            for kind, scalars in (("train", {**SCALARS, **speed}), ("eval", held_out)):
                record = json.loads(metrics.line(kind, step, phase, scalars))
                log.write(json.dumps({**record, "time": time.time() - age}) + "\n")
            state = {
                "step": np.int32(step),
                "params": {"x": jax.numpy.ones(9)},
                "opt": {"m": jax.numpy.ones(9)},
            }
            checkpoints.save(state, description, phase=phase, evaluation=held_out)
    checkpoints.close()
    return path


def test_the_page_has_the_curves_beside_the_baselines(config, tmp_path, capsys):
    run, page = folder_of_a_run(tmp_path / "run", config, 30), tmp_path / "run.html"
    assert cli.main(["status", f"--workdir={run}", f"--html={page}"]) == 0
    assert "step 30 of 100" in capsys.readouterr().out
    text = page.read_text()
    assert text.count("<svg") == 5  # loss and accuracy of two objectives, tokens a second
    assert "left neighbour (bigram)" in text
    assert cli.main(["status", f"--workdir={run}", f"--html={tmp_path}/no/run.html"]) == 1
    assert "no/run.html: cannot write the page" in capsys.readouterr().err


def test_a_run_at_work(config, tmp_path):
    status = read(folder_of_a_run(tmp_path / "run", config, 70))
    assert (status.step, status.total_steps, status.working, status.finished) == (
        70, 100, True, False,
    )  # fmt: skip
    assert (status.phase, status.phases, status.phase_step, status.phase_steps) == (1, 2, 10, 40)
    assert status.epochs == [60 * 8 / 80, 10 * 8 / 50]
    assert status.seconds_left == pytest.approx(30 * 0.5)  # a step of this phase takes 0.5 s
    kept = {one.step: one.kept for one in status.checkpoints}
    assert kept == {
        20: ["best of phase 1"],
        40: ["every 40 steps"],
        60: ["newest 2", "end of phase 1"],
        70: ["newest", "best of phase 2"],
    }
    assert all(0 < one.bytes < status.bytes for one in status.checkpoints)
    text = render(status)
    for said in (
        "step 70 of 100 (70.0%)", "phase 2 of 2: step 10 of 40", "at work", "0:00:15 left",
        "MLM 4.250", "MLM loss 4.250 (unigram 4.500)", "source alone 55.0%", "best of phase 1",
    ):  # fmt: skip
        assert said in text


def test_time_left_weighs_the_phases_to_come(config, tmp_path):
    status = read(folder_of_a_run(tmp_path / "run", config, 60))
    assert (status.phase, status.phase_step) == (0, 60)
    short, long = (metrics.step_flops(config, phase) for phase in config.phases)
    assert long > 1.9 * short
    assert status.seconds_left == pytest.approx(40 * 0.5 * long / short)


def test_a_run_at_rest_and_a_finished_one(config, tmp_path):
    rest = read(folder_of_a_run(tmp_path / "rest", config, 30, age=7200))
    assert not rest.working
    assert "no process seems to be at work" in render(rest)
    assert "2 h ago" in render(rest)
    done = read(folder_of_a_run(tmp_path / "done", config, 100, age=7200))
    assert (done.finished, done.working, done.seconds_left) == (True, False, 0.0)
    assert "finished" in render(done)
    assert {one.step for one in done.checkpoints} == {20, 40, 60, 80, 90, 100}


def test_a_run_that_has_just_begun(config, tmp_path):
    status = read(folder_of_a_run(tmp_path / "run", config, 0))
    assert (status.step, status.age, status.checkpoints) == (0, None, [])
    assert "nothing recorded yet" in render(status)


def test_a_stretch_done_again_counts_from_where_it_is(config, tmp_path):
    """After a crash between 30 and 40 the run is at 30 again, whatever was logged beyond."""
    run = folder_of_a_run(tmp_path / "run", config, 30)
    with (run / "metrics.jsonl").open("a") as log:
        for step in (35, 31):
            log.write(metrics.line("train", step, 0, {**SCALARS, "step_seconds": 0.5}))
    assert read(run).step == 31


def test_the_command_needs_no_jax(config, tmp_path, capsys):
    run = folder_of_a_run(tmp_path / "run", config, 20)
    script = (
        f"import sys; from bert_jax import cli; code = cli.main(['status', '--workdir={run}', "
        "'--json']); heavy = [m for m in ('jax', 'orbax', 'numba', 'optax') if m in sys.modules]; "
        "sys.exit(str(heavy) if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 20
    assert cli.main(["status", f"--workdir={run}"]) == 0
    assert "step 20 of 100" in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys):
    with pytest.raises(UserError, match="not the folder of a pretraining run"):
        read(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert cli.main(["status", f"--workdir={tmp_path}"]) == 1
    assert "give the --workdir that was given to `bert-jax pretrain`" in capsys.readouterr().err


def products(jaxpr) -> float:
    """Floating-point operations of the matrix products in a program, loops unrolled."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), (batch, _) = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            del batch
            total += (
                2.0 * np.prod(equation.outvars[0].aval.shape) * np.prod([left[i] for i in contract])
            )
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in jaxprs_in_params(equation.params):
            total += times * products(inner)
    return total


@pytest.mark.parametrize("pairing", ["nsp", "single"])
@pytest.mark.parametrize("boundary", [False, True])
@pytest.mark.parametrize(
    "rows", [{}, {"examples_per_row": 3, "row_length": 64}, {"micro_batches": 2}]
)
def test_the_operations_of_a_step_are_those_of_its_program(config, pairing, boundary, rows):
    """Three times the products in the forward pass, as traced."""
    data = dataclasses.replace(config.data, pairing=pairing, masking="span", span_boundary=boundary)
    model = dataclasses.replace(config.model, pad_vocab_to_multiple_of=1)
    phase = dataclasses.replace(config.phases[1], **rows)
    config = dataclasses.replace(config, data=data, model=model, phases=(phase,))
    b, s, p = phase.batch_size, phase.row_tokens, phase.row_predictions
    names = dict.fromkeys(("input_ids", "token_type_ids", "example_ids", "position_ids"), s)
    names |= dict.fromkeys(("masked_positions", "span_left", "span_right", "span_offsets"), p)
    names["cls_positions"] = phase.examples_per_row
    batch = {k: jax.ShapeDtypeStruct((b, n), np.int32) for k, n in names.items()}
    graph, abstract = heads.declare(config.model, config.compute, config.objectives)
    traced = jax.make_jaxpr(lambda params, batch: nnx.merge(graph, params)(batch))(
        nnx.to_pure_dict(abstract), batch
    )
    assert metrics.step_flops(config, phase) == pytest.approx(3 * products(traced.jaxpr), rel=1e-3)
