"""`bert-jax compile`: memory, time and collectives of a config on TPUs or GPUs, without any."""

import ast
import contextlib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from bert_jax.commands.command import Command, define_number, need
from bert_jax.commands.kinds import page
from bert_jax.commands.paths import define_output
from bert_jax.errors import UsageError, UserError
from bert_jax.exit_codes import FAILED

if TYPE_CHECKING:
    from bert_jax.config.schema import Config, ModelConfig
    from bert_jax.hardware.targets import Target

_OF_SWEEP = ("sweep_minutes", "sweep_also")
_MOST_MINUTES = 1e6  # two years


def _define_compile(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.config_files import define_config

    define_config(values, words)
    topology = (
        "TPU slice: v3-32, v4-128, v5e-16, v5p-128, v6e-256, tpu7x-64; multislice: 2xv5e-256; "
        "GPUs of a host: h100-8, l4-1; four hosts of eight: 4xa100-80g-8 (default: the config's)"
    )
    flags.DEFINE_string("topology", None, topology, flag_values=values)
    flags.DEFINE_string("phase", "all", "phase of the config, from 0, or all", flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object", flag_values=values)
    define_output(values, "html", "HTML page to write, with plots", page)
    sweep = "search batch sizes, meshes, remat and loop unrolling for the fastest that fits"
    flags.DEFINE_bool("sweep", False, sweep, flag_values=values)
    limit = "time limit of the search"
    define_number(values, "sweep_minutes", 30.0, limit, 0.0, _MOST_MINUTES)
    also = "additional value to search, such as mesh.tensor=2 (may be repeated)"
    flags.DEFINE_multi_string("sweep_also", [], also, flag_values=values)


def _run_compile(values: flags.FlagValues, words: Sequence[str]) -> int | None:
    need(values, "config")
    from bert_jax.runtime.interrupts import ending_at_signals

    with ending_at_signals():  # before NumPy, JAX and libtpu start threads
        return _compile(values)


def _compile(values: flags.FlagValues) -> int | None:
    from bert_jax.config.config_files import read_config

    if given := [name for name in _OF_SWEEP if values[name].present and not values.sweep]:
        raise UsageError(f"--{given[0]} has no effect without --sweep")
    if values.html and values.sweep:
        raise UsageError("--html shows one config, not a sweep: sweep first, then compile the best")
    target = _target(values)
    config = read_config(values, functools.partial(_model_of, target))
    _check_pretrains(values, config)
    phases = _phases(values.phase, config)
    also = _also(values.sweep_also, config)
    from bert_jax.aot import backends

    backends.of(target).prepare()  # before anything imports JAX
    if values.sweep:
        return _sweep(values, config, target, phases, also)
    return _report(values, config, target, phases)


def _check_pretrains(values: flags.FlagValues, config: "Config") -> None:
    """Raises UserError for the config of a task; prints which model's step is compiled if the file
    leaves that open, as those of tasks do."""
    from bert_jax.config.config_files import follows_model, path_of
    from bert_jax.runtime.console import Console

    if name := config.task.name:
        raise UserError(
            f"config.task.name={name}: compile takes the step of pretraining, not that of a task; "
            "give --config.task.name= for pretraining with the other settings"
        )
    if follows_model(values):
        name = path_of(values).stem
        model = f"config.init={config.init}" if config.init else "the default model"
        line = f"compiling {name} as a step of pretraining, with the sizes of {model}"
        Console(stderr=True).print(line)


def _model_of(target: "Target", init: str) -> "ModelConfig":
    """Returns the settings of the model to start from, which are those of the step; UserError if
    there is none."""
    from bert_jax.aot import backends
    from bert_jax.training.resolve import find_architecture

    backends.of(target).prepare()  # before anything imports JAX
    if (found := find_architecture(init)) is None:
        raise UserError(
            f"config.init={init}: no model there, and the architecture of this config is that of "
            "its model; give --config.init=MODEL"
        )
    return found


def _report(
    values: flags.FlagValues, config: "Config", target: "Target", phases: list[int]
) -> int | None:
    from bert_jax.aot import compile_report, report_html, report_sections
    from bert_jax.config.config_files import path_of, words_of
    from bert_jax.runtime.console import working

    result = compile_report.make(path_of(values).stem, config, target, phases, working)
    if values.html:
        report_html.save(result, values.html, words_of(values))
    _print_result(compile_report.as_dict(result) if values.json else report_sections.render(result))
    return None if result.fits else FAILED


def _sweep(
    values: flags.FlagValues,
    config: "Config",
    target: "Target",
    phases: list[int],
    also: dict[str, list[Any]],
) -> int | None:
    from bert_jax.aot import backends, gpu_sweep, sweep, sweep_text
    from bert_jax.config.config_files import path_of
    from bert_jax.runtime.console import working

    options = {"also": also, "seconds": 60 * values.sweep_minutes, "working": working}
    compiler = sweep.compiler(target)
    search = sweep.Search if backends.of(target).estimates else gpu_sweep.SearchInLoop
    result = search(config, phases, target.devices, compiler, **options).run()
    formatted = sweep_text.as_dict if values.json else sweep_text.render
    _print_result(formatted(result, path_of(values).stem, target))
    return None if result.best else FAILED


def _print_result(text: str | dict[str, Any]) -> None:
    if isinstance(text, dict):
        import json

        from bert_jax.metrics.run_records import strict

        text = json.dumps(strict(text), allow_nan=False)
    print(text)


def _also(words: list[str], config: "Config") -> dict[str, list[Any]]:
    """Additional values by key, parsed from words such as "mesh.tensor=2"."""
    from bert_jax.config.serialization import flatten, to_dict
    from bert_jax.config.unknown_keys import key_hint

    known = flatten(to_dict(config))
    extra: dict[str, list[Any]] = {}
    for word in words:
        key, sign, value = word.partition("=")
        key = key.removeprefix("--").removeprefix("config.")
        if not sign or not value:
            raise UserError(f"--sweep_also={word}: give a key and a value, as in mesh.tensor=2")
        if key not in known:
            raise UserError(f"--sweep_also={word}: unknown key{key_hint(key, known)}")
        with contextlib.suppress(ValueError, SyntaxError):  # else a plain string
            value = ast.literal_eval(value)
        extra.setdefault(key, []).append(value)
    return extra


def _target(values: flags.FlagValues) -> "Target":
    from bert_jax.config.config_files import path_of, slice_of
    from bert_jax.hardware import targets

    name = values.topology or slice_of(path_of(values))
    if not name:
        raise UsageError(
            "--topology=… is missing (this config names no slice); give v5e-16 or h100-8"
        )
    try:
        return targets.find(name)
    except ValueError as error:
        raise UserError(f"--topology: {error}") from None


def _phases(text: str, config: "Config") -> list[int]:
    """Phase indices, from 0."""
    indices = list(range(len(config.phases)))
    if text == "all":
        return indices
    if text not in map(str, indices):
        raise UserError(f"--phase={text}: give one from 0 to {indices[-1]}, or all")
    return [int(text)]


COMMANDS = {
    "compile": Command(
        "compile the training step for TPUs or GPUs, without one: memory, time, collectives",
        "bert-jax compile --config=wiki_books_large --topology=v5e-256",
        _define_compile,
        _run_compile,
    ),
}
