"""The flags that name what a command reads and writes, and the gate that its outputs pass first.

Every flag of a path is defined here, so that `check_outputs` knows all inputs of a command, and a
test all outputs of all commands.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from absl import flags

if TYPE_CHECKING:
    from bert_jax.storage.outputs import OutputKind

# The kind of an output, imported when the flag is given; it may depend on the other flags.
FindKind = Callable[[flags.FlagValues], "OutputKind"]
# The paths that a value of a flag names.
Locate = Callable[[str, flags.FlagValues], Iterable[Any]]
_OVERWRITE: Final = "overwrite"

# What the flags of each parser name.
_outputs: Final[WeakKeyDictionary[flags.Flag, FindKind]] = WeakKeyDictionary()
_inputs: Final[WeakKeyDictionary[flags.Flag, Locate]] = WeakKeyDictionary()
# Inputs that may also be the name of a repository on the Hugging Face hub.
_on_hub: Final[WeakKeyDictionary[flags.Flag, bool]] = WeakKeyDictionary()


def _itself(value: str, values: flags.FlagValues) -> Iterable[str]:
    return [value]


def define_output(
    values: flags.FlagValues, name: str, help_text: str, kind: FindKind, *, repeated: bool = False
) -> None:
    """Defines a flag that names a file or a folder to write; `check_outputs` checks it."""
    _outputs[_define(values, name, help_text, repeated)] = kind


def define_overwrite(values: flags.FlagValues) -> None:
    """Defines --overwrite, for commands that write a format that carries no mark."""
    text = "replace existing files; by default, only empty ones are"
    flags.DEFINE_bool(_OVERWRITE, False, text, flag_values=values)


def define_input(
    values: flags.FlagValues,
    name: str,
    help_text: str,
    *,
    locate: Locate = _itself,
    repeated: bool = False,
    on_hub: bool = False,
) -> None:
    """Defines a flag that names a file or a folder to read, into which nothing is written.

    locate: returns the paths that a value names; by default it is one. on_hub: it may be a dataset
    on the hub; a `locate` decides that itself.
    """
    flag = _define(values, name, help_text, repeated)
    _inputs[flag], _on_hub[flag] = locate, on_hub or locate is not _itself


def check_inputs(values: flags.FlagValues) -> None:
    """Raises UserError, before a command starts, for an input on the hub that is not read there."""
    from bert_jax.storage.hub import check_not_hub

    for name in values:
        if not _on_hub.get(values[name], True):
            for value in _given(values[name]):
                check_not_hub(value, f"--{name}=")


def _define(values: flags.FlagValues, name: str, help_text: str, repeated: bool) -> flags.Flag:
    if repeated:
        flags.DEFINE_multi_string(name, [], help_text, flag_values=values)
    else:
        flags.DEFINE_string(name, None, help_text, flag_values=values)
    return values[name]


def outputs_of(values: flags.FlagValues) -> list[str]:
    """Returns the names of the flags that name what a command writes."""
    return [name for name in values if values[name] in _outputs]


def check_outputs(
    values: flags.FlagValues, *, inputs: Iterable[str] = (), offline: bool = False
) -> None:
    """Raises UserError, before a command starts, if it may not write one of its outputs.

    Args:
        inputs: paths that it reads besides those of its flags.
        offline: nothing in a bucket is read.
    """
    named = [values[name] for name in outputs_of(values)]
    outputs = [(path, _outputs[flag]) for flag in named for path in _given(flag)]
    if not outputs:
        return
    from bert_jax.storage.outputs import check_apart, check_output
    from bert_jax.storage.remote import is_remote

    inputs = [*inputs_of(values), *inputs]
    overwrite = _OVERWRITE in values and bool(values[_OVERWRITE].value)
    check_apart(path for path, _ in outputs)
    for path, kind in sorted(outputs, key=lambda output: is_remote(output[0])):  # local ones first
        check_output(path, kind(values), inputs=inputs, overwrite=overwrite, offline=offline)


def inputs_of(values: flags.FlagValues) -> Iterator[str]:
    """Yields the paths that a command reads, those that its configuration names included, and those
    that a run which it reads does."""
    from bert_jax.workdir.inputs import inputs_of_config, inputs_of_model

    for name in values:
        flag = values[name]
        if flag in _inputs:
            for value in _given(flag):
                for path in map(str, _inputs[flag](value, values)):
                    yield from inputs_of_model(path)
    if "config" in values and values["config"].value is not None:
        from bert_jax.config.config_files import path_of
        from bert_jax.config.serialization import plain

        yield str(path_of(values))
        for path in inputs_of_config(plain(values["config"].value)):
            yield from inputs_of_model(path)


def model_paths(value: str, values: flags.FlagValues | None = None) -> list[str]:
    """Returns the path of a model in a folder, a run or a step of one; none of a model on a hub."""
    from bert_jax.workdir.inputs import path_of_model

    return path_of_model(value)


def _given(flag: flags.Flag) -> list[str]:
    value = flag.value or []
    return [value] if isinstance(value, str) else list(value)
