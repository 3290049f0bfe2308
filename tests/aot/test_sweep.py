"""`bert-jax compile --sweep`: what it tries, what it passes over, what it chooses.

By default with a compiler made up here, whose times and bytes follow from the config; the real one
is asked once, in a process of its own (tests/commands/test_compile.py).
"""

import contextlib
import dataclasses
import itertools
import json
import lzma
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compiled_reports import analysis, compile_for, made
from tpu_compiler import needs_libtpu

from bert_jax import cli
from bert_jax.aot import (
    compile_report,
    gpu_compiler,
    gpu_sweep,
    report_data,
    report_sections,
    sweep,
    sweep_text,
    topology,
)
from bert_jax.aot.cost.analysis import analyse
from bert_jax.aot.cost.memory import GIB, Memory
from bert_jax.aot.memory_advice import Remedy, with_changes
from bert_jax.aot.sweep import Compiler
from bert_jax.aot.sweep_results import Sweep
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.hardware import gpus, slices, targets
from bert_jax.storage.host_name import host_name

LIMIT = 16 * GIB
CHIPS = 16
REMEDIES = (
    Remedy({"compute.remat": "full"}, 10 * GIB),
    Remedy({"phases[0].micro_batches": 2}, 10 * GIB),
)


class FakeCompiler:
    """Steps of 1 s; parts and rematerialization cost time and save memory, unrolling saves time."""

    def __init__(self, gib: float = 8.0):
        self.gib = gib
        self.compiled: list[tuple[Config, int]] = []
        self.estimated: Callable[..., int | None] = lambda *_: None

    @property
    def compiler(self) -> Compiler:
        return Compiler(self.measure, lambda *given: self.estimated(*given))

    def measure(self, config: Config, index: int) -> report_data.PhaseReport:
        self.compiled.append((config, index))
        if config.mesh.tensor > 2:
            raise UserError("config.mesh.tensor=4 does not divide")
        phase, compute = config.phases[index], config.compute
        seconds = 1.0 + 0.1 * phase.micro_batches - 0.05 * compute.unroll_layers
        seconds += 0.2 * (compute.remat != "none") + 0.01 * config.mesh.fsdp
        needed = self.gib / phase.micro_batches / (2 if compute.remat == "full" else 1)
        needed *= phase.batch_size / 256
        fits = needed * GIB <= LIMIT
        memory = Memory(0, 0, 0, round(needed * GIB), 0, LIMIT, fits)
        found = analysis(compute_seconds=seconds, unestimated_seconds=0.0, exposed_seconds=0.0)
        return report_data.PhaseReport(
            index, phase, memory, () if fits else REMEDIES,
            found if fits else None, 60.0, 1e15, 3e15,
        )  # fmt: skip


def base(name: str = "base") -> Config:
    return with_changes(load(name), {"compute.unroll_layers": 1})


def run(config: Config, fake: FakeCompiler, **options: Any) -> Sweep:
    phases = options.pop("phases", range(len(config.phases)))
    options = {"also": {}, "seconds": 1e9, "working": quiet} | options
    return sweep.Search(config, list(phases), CHIPS, fake.compiler, **options).run()


def quiet(_: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def clock(step: float) -> Callable[[], float]:
    """Each look at it, so many seconds have passed."""
    return map(float, itertools.count(0, step)).__next__  # type: ignore[arg-type]


def tried(found: Sweep) -> set[str]:
    return {one.flags for one in found.tried}


def test_every_knob_is_turned_and_the_best_values_are_combined() -> None:
    fake = FakeCompiler()
    found = run(base(), fake)
    assert found.best is not None
    assert found.best.flags == "--config.compute.unroll_layers=6"
    assert {
        "",
        "'--config.phases[0].micro_batches=2'",
        "--config.mesh.fsdp=2",
        "--config.mesh.fsdp=8",
        "--config.compute.remat=full",
        "--config.compute.remat=dots_with_no_batch_dims_saveable",
        "--config.compute.unroll_layers=4",
        "--config.mesh.fsdp=2 --config.compute.unroll_layers=6",  # once more, from the best
    } <= tried(found)
    assert "--config.compute.unroll_layers=5" not in tried(found), "no divisor of 12"
    assert len(fake.compiled) == len(set(fake.compiled)) == len(found.tried)
    speeds = [one.tokens_per_second for one in found.ranked]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] == pytest.approx(256 * 128 / 0.81)


def test_the_schedule_of_a_run_need_not_fit_into_a_phase() -> None:
    config = with_changes(base("wiki_books_base"), {"optimizer.schedule": "wsd"})
    short = dataclasses.replace(config.phases[-1], steps=10)
    found = run(dataclasses.replace(config, phases=(config.phases[0], short)), FakeCompiler())
    assert found.best is not None
    assert all(one.refusal is None for one in found.tried)


def test_what_takes_long_or_changes_the_run_is_tried_only_when_asked_for() -> None:
    found = run(base(), FakeCompiler())
    for never in ("batch_size", "mesh.tensor", "unroll_layers=12", "unroll_layers=0", "attention"):
        assert not any(never in one for one in tried(found))
    also = {"mesh.tensor": [2], "phases[0].batch_size": [512]}
    found = run(base(), FakeCompiler(), also=also)
    assert "phases[0].batch_size=512" in found.best.flags
    assert any("mesh.tensor=2" in one for one in tried(found))


def test_forms_of_attention_are_tried_where_no_probabilities_are_dropped() -> None:
    config = with_changes(base(), {"model.attention_probs_dropout_prob": 0.0})
    assert "--config.compute.attention=xla" in tried(run(config, FakeCompiler()))


def test_smaller_parts_are_tried_until_they_are_slower() -> None:
    said = tried(run(base(), FakeCompiler()))
    assert "'--config.phases[0].micro_batches=2'" in said
    assert "'--config.phases[0].micro_batches=4'" not in said


def test_where_the_config_does_not_fit_what_makes_it_fit_comes_first() -> None:
    fake = FakeCompiler(gib=20.0)
    found = run(base(), fake)
    first = [(c.compute.remat, c.phases[0].micro_batches) for c, _ in fake.compiled[:3]]
    assert first == [("none", 1), ("full", 1), ("none", 2)]
    assert found.refused[0].flags == ""
    assert found.refused[0].refusal == "does not fit: 20.00 GiB of 16.00"
    assert found.best.needed <= LIMIT
    assert set(found.best.changes) == {"phases[0].micro_batches", "compute.unroll_layers"}


def test_what_the_estimate_rules_out_is_not_compiled() -> None:
    fake = FakeCompiler()
    fake.estimated = lambda config, index, memory, change: (
        20 * GIB if change == {"mesh.fsdp": 4} else 2 * GIB
    )
    found = run(base(), fake)
    assert all(config.mesh.fsdp != 4 for config, _ in fake.compiled)
    (first, *_) = found.refused
    assert first.changes == {"mesh.fsdp": 4}
    assert first.refusal == "not compiled: 20.00 GiB of 16.00 by estimate"


def test_nothing_that_fits_is_said(monkeypatch) -> None:
    monkeypatch.setattr(topology, "version", lambda: "0.0.42.1")
    found = run(base(), FakeCompiler(gib=1e6))
    assert found.best is None
    said = sweep_text.render(found, "base", slices.find("v5e-16"))
    assert "No candidate fits: use more devices or fewer rows." in said
    assert "(unchanged): does not fit: 1,000,000.00 GiB of 16.00" in said


def test_what_cannot_be_is_noted_and_the_search_goes_on() -> None:
    also = {"mesh.tensor": [4], "phases[0].seq_length": [4096]}
    found = run(base(), FakeCompiler(), also=also)
    why = {key: str(one.refusal) for one in found.refused for key in one.changes}
    assert "config.mesh.tensor=4 does not divide" in why["mesh.tensor"]
    assert "config.model.max_position_embeddings" in why["phases[0].seq_length"]
    assert found.best is not None


def test_a_config_that_does_not_go_at_all_is_an_error() -> None:
    config = with_changes(base(), {"mesh.tensor": 4})
    with pytest.raises(UserError, match=r"config\.mesh\.tensor=4 does not divide"):
        run(config, FakeCompiler())


def test_the_time_is_kept_and_what_was_not_tried_is_said(monkeypatch) -> None:
    monkeypatch.setattr(topology, "version", lambda: "0.0.42.1")
    said: list[str] = []

    @contextlib.contextmanager
    def working(what: str) -> Iterator[None]:
        said.append(what)
        yield

    found = run(base(), FakeCompiler(), seconds=30, working=working, now=clock(4.0))
    assert 1 < len(found.tried) < 8
    assert found.left
    assert not tried(found) & {sweep.flags(changes) for changes in found.left}
    text = sweep_text.render(found, "base", slices.find("v5e-16"))
    assert f"Not tried within --sweep_minutes ({len(found.left)}):" in text
    assert re.match(
        r"compiling 1 of at most \d+ \(0:00:\d\d so far, at most 0:00:\d\d left", said[0]
    )
    assert said[0].endswith("): the unchanged config")
    assert said[1].startswith("compiling 2 of at most ")
    assert said[1].endswith("): '--config.phases[0].micro_batches=2'")


def test_the_time_left_is_that_of_so_many_more_where_that_is_less() -> None:
    said: list[str] = []

    @contextlib.contextmanager
    def working(what: str) -> Iterator[None]:
        said.append(what)
        yield

    run(base(), FakeCompiler(), working=working, now=clock(4.0))
    assert len(said) > 3
    for one in said[1:]:
        assert re.search(r"\(0:\d\d:\d\d so far, at most 0:\d\d:\d\d left\)", one)


def test_phases_are_judged_together_and_each_compiled_once() -> None:
    config, fake = base("wiki_books_base"), FakeCompiler()
    found = run(config, fake)
    assert {"micro_batches" in one for one in tried(found)} == {True, False}
    seen = [(dataclasses.replace(c, phases=(c.phases[i],)), i) for c, i in fake.compiled]
    assert len(seen) == len(set(seen))
    first = next(one for one in found.tried if not one.changes)
    steps = [phase.steps for phase in config.phases]
    assert first.seconds == pytest.approx(sum(steps) * 1.06)
    tokens = 256 * (128 * steps[0] + 512 * steps[1])
    assert first.tokens_per_second == pytest.approx(tokens / first.seconds)


def test_what_is_printed_is_a_ranking_and_the_flags_to_use(monkeypatch) -> None:
    monkeypatch.setattr(topology, "version", lambda: "0.0.42.1")
    found, of = run(base(), FakeCompiler()), slices.find("v5e-16")
    said = sweep_text.render(found, "base", of)
    assert "nothing ran" in said
    assert "estimates" in said
    assert said.endswith("by estimate:\n  --config.compute.unroll_layers=6")
    lines = said.splitlines()
    assert lines[4].split() == ["40,454", "225.00", "8.00", "60", "s", found.best.flags]
    plain = json.loads(json.dumps(sweep_text.as_dict(found, "base", of), allow_nan=False))
    assert plain["best"] == found.best.flags
    assert plain["tried"][0]["changes"] == {"compute.unroll_layers": 6}
    assert len(plain["tried"]) == len(found.tried)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--sweep", "--sweep_also=mesh.tensor"], 1, "give a key and a value, as in mesh.tensor=2"),
        (["--sweep", "--sweep_also=mesh.tenser=2"], 1, "did you mean mesh.tensor?"),
        (["--sweep", "--html=sweep.html"], 2, "--html shows one config, not a sweep"),
        (["--sweep", "--sweep_minutes=-1"], 2, "sweep_minutes"),
        (["--html=nowhere/page.html"], 1, "nowhere/page.html: no such folder nowhere"),
    ],
)
def test_bad_input_is_one_line(words: list[str], code: int, says: str, capsys) -> None:
    assert cli.main(["compile", "--config=base", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_sum_above_the_limit_that_the_compiler_accepts_is_explained() -> None:
    one = made(fits=True)
    (phase,) = one.phases
    memory = dataclasses.replace(phase.memory, temporaries=20 * GIB, peak=15 * GIB)
    over = dataclasses.replace(phase, memory=memory)
    said = report_sections.render(dataclasses.replace(one, phases=(over,)))
    assert "the compiler accepts the program: the sum counts temporaries that are not" in said
    assert "at the same time, at most 15.00 GiB." in said
    assert "the compiler accepts" not in report_sections.render(one)


@pytest.mark.parametrize("fits", [True, False])
def test_a_page_has_memory_and_time_of_every_phase(fits: bool, tmp_path: Path, monkeypatch) -> None:
    file = Path(__file__).parents[1] / "goldens" / "v5e_tiny.hlo.xz"
    real = analyse(
        lzma.decompress(file.read_bytes()).decode(),
        mesh_shape={"slice": 1, "data": 4, "fsdp": 2, "tensor": 2},
        accelerator=slices.find("v5e-16").generation.accelerator,
    )
    one = made(fits=fits, found=real, config="wiki_books_base")
    second = dataclasses.replace(one.phases[0], index=1, phase=one.config.phases[1])
    whole = dataclasses.replace(one, phases=(*one.phases, second))
    monkeypatch.setattr(topology, "prepare", lambda: None)
    monkeypatch.setattr(compile_report, "make", lambda *_: whole)
    path = tmp_path / "page.html"
    code = cli.main(["compile", "--config=wiki_books_base", f"--html={path}"])
    assert code == (0 if fits else 1)
    text = path.read_text()
    said = [
        host_name(),
        "Phase 1 of 2: 900,000 steps",
        "Phase 2 of 2: 100,000 steps",
        "activations and temp",
    ]
    if fits:
        said += ["6.00 GiB of 15.75 GiB, fits", "tokens/s including padding", "Whole run: ", "free"]
        said += ["Where the time goes", "Most expensive source lines", "MFU", "estimated"]
    else:
        said += [
            "DOES NOT FIT",
            "Over the limit by 17.25 GiB.",
            "&#x27;--config.phases[0].micro_batches=4&#x27;",
        ]
        assert "tokens/s" not in text
    for part in said:
        assert part in text
    assert text.index("Phase 1 of 2") < text.index("Phase 2 of 2")
    assert text.count("<svg") == (4 if fits else 2)


@pytest.mark.nightly
@needs_libtpu
@pytest.mark.processes
def test_a_sweep_with_the_real_compiler_ends_in_flags_that_compile() -> None:
    words = ("--config=tiny", "--topology=v5e-4", "--config.model.num_hidden_layers=1")
    done = compile_for(*words, "--sweep", "--sweep_minutes=5", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["tried"]) >= 2
    assert found["tried"][0]["estimated_tokens_per_second"] > 0
    again = compile_for(*words, *found["best"].split(), "--json")
    assert again.returncode == 0, again.stderr
    (phase,) = json.loads(again.stdout)["phases"]
    speed = found["tried"][0]["estimated_tokens_per_second"]
    assert phase["estimated_tokens_per_second"] == pytest.approx(speed)


@pytest.mark.parametrize("name", ["2xrtx4090-2", "2xv3-8", "v2-8"])
def test_without_a_known_network_nothing_is_compiled(name: str, monkeypatch) -> None:
    monkeypatch.setattr(sweep, "backends", None)  # is not asked for devices
    with pytest.raises(UserError, match=r"^--sweep: the bandwidth between these .* is unknown"):
        sweep.compiler(targets.find(name))


def test_for_gpus_the_search_has_a_loop_and_the_best_is_compiled_unrolled(monkeypatch) -> None:
    monkeypatch.setattr(gpu_compiler, "name", lambda: "the compiler")
    fake, said = FakeCompiler(), list[str]()

    def working(what: str) -> contextlib.AbstractContextManager[None]:
        said.append(what)
        return quiet(what)

    options = {"also": {}, "seconds": 1e9, "working": working}
    found = gpu_sweep.SearchInLoop(load("base"), [0], CHIPS, fake.compiler, **options).run()
    *searched, (last, _) = fake.compiled
    assert {config.compute.unroll_layers for config, _ in searched} == {1}
    assert last.compute.unroll_layers == 0
    assert found.best
    assert found.unrolled
    assert last == with_changes(load("base"), found.best.changes)
    assert said[-1] == "compiling the best with its layers unrolled: the unchanged config"
    text = sweep_text.render(found, "base", gpus.find("h100-8"))
    assert "With its layers unrolled it needs" in text
    assert "hours" not in text
    assert "at most" in text
    assert "No candidate is faster than the unchanged config." in text
    cut = dataclasses.replace(found, left=({"mesh.fsdp": 8},))
    text = sweep_text.render(cut, "base", gpus.find("h100-8"))
    assert "No candidate of those tried is faster than the unchanged config." in text
    plain = sweep_text.as_dict(found, "base", gpus.find("h100-8"))
    assert plain["best"] == found.best.flags
    assert plain["tried"][0]["at_most_tokens_per_second"] > 0
    assert "estimated_tokens_per_second" not in plain["tried"][0]


@pytest.mark.parametrize("limit", [0, 250, 310, 500, 1500])
def test_of_the_time_what_the_unrolled_layers_may_take_is_kept(limit: int, monkeypatch) -> None:
    """A candidate takes 60 s, and the twelve layers of the best 180."""
    monkeypatch.setattr(gpu_compiler, "name", lambda: "the compiler")
    fake, passed = FakeCompiler(), 0.0

    def measure(config: Config, index: int) -> report_data.PhaseReport:
        nonlocal passed
        passed += 60 if config.compute.unroll_layers == 1 else 180
        return FakeCompiler.measure(fake, config, index)

    monkeypatch.setattr(fake, "measure", measure)
    options = {"also": {}, "seconds": limit, "working": quiet, "now": lambda: passed}
    found = gpu_sweep.SearchInLoop(load("base"), [0], CHIPS, fake.compiler, **options).run()
    assert found.best
    assert (found.unrolled is not None) == (limit >= 250)
    assert passed <= max(limit, 60)
    assert (len(found.tried) > 1) == (limit >= 310)
    head = sweep_text.render(found, "base", gpus.find("h100-8")).partition("\n\n")[0]
    first, *_, last = head.splitlines()
    assert len(first) > 80
    assert max(map(len, head.splitlines())) <= 100
    assert last.endswith("Tokens include padding.")


@pytest.mark.parametrize("why", ["does not fit", "no time", "an error"])
def test_where_the_unrolled_layers_do_not_go_the_best_keeps_its_loop(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(gpu_compiler, "name", lambda: "the compiler")
    fake = FakeCompiler(gib=9.0)

    def measure(config: Config, index: int) -> report_data.PhaseReport:
        if config.compute.unroll_layers != 1 and why == "an error":
            raise UserError("the compiler broke")
        found = FakeCompiler.measure(fake, config, index)
        over = config.compute.unroll_layers != 1 and why == "does not fit"
        memory = dataclasses.replace(found.memory, temporaries=17 * GIB, fits=False)
        return dataclasses.replace(found, memory=memory) if over else found

    monkeypatch.setattr(fake, "measure", measure)
    options = {"also": {}, "seconds": 1e9, "working": quiet}
    if why == "no time":
        options["seconds"] = 0.5
        options["now"] = clock(0.1)
    found = gpu_sweep.SearchInLoop(load("base"), [0], CHIPS, fake.compiler, **options).run()
    assert found.best
    assert found.chosen == {"compute.unroll_layers": 1, **found.best.changes}
    text = sweep_text.render(found, "base", gpus.find("h100-8"))
    assert "--config.compute.unroll_layers=1" in text.partition(" that fits, ")[2]
    said = {
        "does not fit": "does not fit: 17.00 GiB of 16.00",
        "no time": "it was not compiled within --sweep_minutes",
        "an error": "the compiler broke",
    }
    assert said[why] in text


def test_a_loop_that_is_asked_for_is_no_knob_of_a_search_for_gpus() -> None:
    options = {"also": {"compute.unroll_layers": [3]}, "seconds": 1e9, "working": quiet}
    search = gpu_sweep.SearchInLoop(load("base"), [0], CHIPS, FakeCompiler().compiler, **options)
    with pytest.raises(UserError, match=r"--sweep_also=compute\.unroll_layers: .*; leave it out"):
        search.run()
