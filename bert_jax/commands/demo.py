"""`bert-jax demo`: all stages from text to a model, on this machine."""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_jax.commands.command import Command
from bert_jax.commands.kinds import demo_folder
from bert_jax.commands.paths import define_input, define_output


def _define_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    workdir = "folder for all results (default: demo_run, with --data demo_run_NAME)"
    define_output(values, "workdir", workdir, demo_folder)
    data = "your text, a file, folder, or KIND:PATH as for --source (default: Python documentation)"
    define_input(values, "data", data, locate=_text_of)
    steps = "number of training steps (default: a few minutes of training)"
    flags.DEFINE_integer("steps", None, steps, 1, flag_values=values)


def _text_of(data: str, values: flags.FlagValues) -> list[Path]:
    """Returns the files and folders of text that --data names."""
    from bert_jax.data_pipeline.sources.finding import named
    from bert_jax.demo.pipeline import source_of

    return named(source_of(data).path)


def _run_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.demo.pipeline import demo

    workdir = Path(values.workdir) if values.workdir else None
    demo(workdir, data=values.data, steps=values.steps)


COMMANDS = {
    "demo": Command(
        "run all stages on this machine: text, tokenizer, store, pretraining, export, report",
        "bert-jax demo --data=/path/to/text",
        _define_demo,
        _run_demo,
        is_run=True,
    ),
}
