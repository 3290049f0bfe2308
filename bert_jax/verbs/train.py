"""`bert-jax demo` and `pretrain`: runs."""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_jax.verbs.verb import Verb, need


def _define_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", "demo_run", "folder for everything", flag_values=values)
    data = "your text, a file or folder (default: the documentation every Python carries)"
    flags.DEFINE_string("data", None, data, flag_values=values)
    steps = "training steps (default: a few minutes' worth)"
    flags.DEFINE_integer("steps", None, steps, 1, flag_values=values)


def _run_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.demo import demo

    demo(Path(values.workdir), data=values.data, steps=values.steps)


def _define_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config_file import define_config

    define_config(values, words)
    flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
    devices = "on a CPU: act as so many devices"
    flags.DEFINE_integer("cpu_devices", None, devices, 1, flag_values=values)


def _run_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "config", "workdir")
    from bert_jax.config_file import read_config

    config = read_config(values)
    from bert_jax.sharding import use_cpu_devices
    from bert_jax.train import pretrain

    if values.cpu_devices:
        use_cpu_devices(values.cpu_devices)
    pretrain(config, values.workdir)


VERBS = {
    "demo": Verb(
        "the whole way on this machine: text, tokenizer, store, pretraining, export, report",
        "bert-jax demo --data=/path/to/text",
        _define_demo,
        _run_demo,
    ),
    "pretrain": Verb(
        "train a model; run again, it goes on from its newest checkpoint",
        "bert-jax pretrain --config=wiki_books_small --config.data.store=store --workdir=run",
        _define_pretrain,
        _run_pretrain,
    ),
}
