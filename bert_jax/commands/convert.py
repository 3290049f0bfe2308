"""`bert-jax convert`: converts checkpoints to and from the formats of other libraries."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from bert_jax.commands.command import (
    Command,
    define_number,
    define_weights,
    given_flags,
    need,
)
from bert_jax.commands.kinds import export, exports
from bert_jax.commands.paths import define_input, define_output, model_paths
from bert_jax.errors import UsageError
from bert_jax.exit_codes import FAILED

if TYPE_CHECKING:
    from bert_jax.publish.push import Target


def _define_export(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(values, "workdir", "folder of a run")
    define_output(values, "out", "folder to write", exports)
    step = "step of the checkpoint (default: the newest)"
    flags.DEFINE_integer("step", None, step, 0, flag_values=values)
    every = "export all checkpoints, each in a folder of --out"
    flags.DEFINE_bool("all_steps", False, every, flag_values=values)
    dtypes = ["float32", "bfloat16", "float16"]
    flags.DEFINE_enum("dtype", "float32", dtypes, "of the weights", flag_values=values)
    size = "largest file of weights, such as 2GB (default: all in one)"
    flags.DEFINE_string("max_shard_size", None, size, flag_values=values)
    define_weights(values)
    _define_optimizer_state(values)
    _define_push(values)
    revision = "branch for --push, which names the checkpoint, such as step-1000"
    flags.DEFINE_string("revision", None, revision, flag_values=values)


def _define_push(values: flags.FlagValues) -> None:
    repository = "model repository on the Hugging Face hub to push the folder to: OWNER/NAME"
    flags.DEFINE_string("push", None, repository, flag_values=values)
    public = "make the repository public; by default a new one is private"
    flags.DEFINE_bool("public", False, public, flag_values=values)


def _define_optimizer_state(values: flags.FlagValues) -> None:
    state = "also write the optimizer's moments and step, for config.init_optimizer=carry"
    flags.DEFINE_bool("optimizer_state", False, state, flag_values=values)


def _run_export(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir", "out")
    from bert_jax.publish.weight_writer import WeightFormat

    if values.optimizer_state and values.weights != "last":
        raise UsageError(
            f"--optimizer_state: the moments are not those of --weights={values.weights}"
        )
    options: dict[str, Any] = {
        "all_steps": values.all_steps,
        "form": WeightFormat(values.dtype, values.max_shard_size),
        "optimizer_state": values.optimizer_state,
        "weights": values.weights,
    }
    if values.push:
        from bert_jax.publish.push_run import run_export_and_push

        options["command"] = shlex.join(["bert-jax", "convert", "export", *given_flags(values)])
        run_export_and_push(values.workdir, values.out, values.step, _target(values), **options)
        return
    if values.revision or values.public:
        raise UsageError("--revision and --public need --push")
    from bert_jax.publish.export import run_export

    run_export(values.workdir, values.out, values.step, **options)


def _target(values: flags.FlagValues) -> "Target":
    from bert_jax.publish.push import MAIN, Target

    return Target(values.push, not values.public, values.revision or MAIN)


def _define_only_push(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(values, "from", "folder of an export or an import")
    _define_push(values)
    flags.DEFINE_string("revision", None, "branch (default: main)", flag_values=values)


def _run_only_push(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "from", "push")
    from bert_jax.publish.push import push

    push(values["from"].value, _target(values))


def _define_import(values: flags.FlagValues, words: Sequence[str]) -> None:
    source = (
        "a folder of transformers or google-research/bert, a zip of it, or hf:OWNER/NAME[@REVISION]"
    )
    define_input(values, "from", source, locate=model_paths)
    define_output(values, "out", "folder to write", export)
    _define_optimizer_state(values)


def _run_import(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "from", "out")
    from bert_jax.publish.import_model import run_import

    run_import(values["from"].value, values.out, optimizer_state=values.optimizer_state)


def _define_verify(values: flags.FlagValues, words: Sequence[str]) -> None:
    text = "file with one text per line, a tab between two of a pair (default: a few sentences)"
    define_input(values, "text", text)
    tolerance = "largest difference of models that count as the same"
    define_number(values, "tolerance", 1e-5, tolerance, 0)


def _run_verify(values: flags.FlagValues, words: Sequence[str]) -> int | None:
    if len(words) != 2:
        raise UsageError(f"give two models to compare, not {len(words)}")
    from bert_jax.convert.verify import run_verify

    model, other = words
    same = run_verify(model, other, values["text"].value, values.tolerance)
    return None if same else FAILED


COMMANDS = {
    "convert export": Command(
        "export a checkpoint as a folder that transformers loads",
        "bert-jax convert export --workdir=run --out=exported",
        _define_export,
        _run_export,
    ),
    "convert import": Command(
        "import a released model, for bert_jax.load, transformers or a run",
        "bert-jax convert import --from=uncased_L-12_H-768_A-12.zip --out=model",
        _define_import,
        _run_import,
        takes_modules=False,
    ),
    "convert push": Command(
        "push a folder that was exported or imported to the Hugging Face hub",
        "bert-jax convert push --from=exported --push=me/my-bert",
        _define_only_push,
        _run_only_push,
        takes_modules=False,
    ),
    "convert verify": Command(
        "compare two models of any kind, layer by layer, on the same text",
        "bert-jax convert verify run exported",
        _define_verify,
        _run_verify,
        arguments=" MODEL OTHER",
    ),
}
