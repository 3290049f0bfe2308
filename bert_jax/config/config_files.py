"""`--config`: a shipped name or a path; `--config.x.y=value` overrides, as with ml_collections.

A .py file is executed; a .yaml, .yml or .json file is read. ml_collections gets the path of
`typed_file` with that of the file as its argument.
"""

import functools
import runpy
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from bert_jax.config import values_file
from bert_jax.config.ablation import check_kind, check_not_ablation
from bert_jax.config.defaults import ARCHITECTURE
from bert_jax.config.effect import check_effect
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.serialization import flatten, from_dict, plain, updated
from bert_jax.config.shipped import allow_configs_import, shipped, shipped_ablations
from bert_jax.config.starts import check_start
from bert_jax.config.unknown_keys import key_hint
from bert_jax.config.vocabulary import SizeOf, vocab_size
from bert_jax.errors import UserError, nearest
from bert_jax.storage.hub import is_hub
from bert_jax.storage.regular_file import check_not_special

# Returns the settings of the model that `config.init` names, None if it is not there.
ModelOf = Callable[[str], ModelConfig | None]
_FLAG = "config"
_VOCABULARY = "vocab_size"
_JOINED = (_FLAG, "module")
_READ = f"{Path(__file__).with_name('typed_file.py')}:"  # before the path of a file


def define_config(
    values: flags.FlagValues,
    argv: Sequence[str],
    default: str | None = None,
    *,
    ablation: bool = False,
) -> None:
    """Defines `--config` and the overrides found in argv.

    default: a shipped name. ablation: the command takes ablations, see `with_paths`.
    """
    kind, names, example = "config", shipped(), "model.hidden_size=512"
    if ablation:
        kind, names, example = "ablation", shipped_ablations(), "seeds=0,1,2"
    has_flag = any(word.startswith(f"--{_FLAG}=") for word in argv)
    path = None if has_flag or default is None else shipped()[default]
    allow_configs_import()
    if path:
        _check_overrides(path, argv)
    config_flags.DEFINE_config_file(
        _FLAG,
        path and f"{_READ}{path}",
        f"a shipped {kind} ({', '.join(names)}) or the path of a .py, .yaml or .json file; "
        f"--{_FLAG}.{example} overrides a value"
        f"{f' (default {default})' if default else ''}",
        flag_values=values,
        sys_argv=list(argv),
    )


def with_paths(argv: Sequence[str], *, ablation: bool = False) -> list[str]:
    """Returns argv with a shipped config's name replaced by its path.

    ablation: the command takes ablations, not configurations of one run.

    Raises:
        UserError: neither a shipped name nor a file, a file of the other kind, or an override of a
            key that does not exist.
    """
    words = joined(argv)
    for i, word in enumerate(words):
        if word.startswith(f"--{_FLAG}="):
            name = word.partition("=")[2]
            path = _find(name, f"--config={name}")
            words[i] = f"--{_FLAG}={_READ}{path}"
            _check_overrides(path, words, functools.partial(check_kind, name, ablation=ablation))
    return words


def joined(argv: Sequence[str]) -> list[str]:
    """Returns argv with `--config NAME` and `--module PATH` as one word each."""
    words = list(argv)
    for i, word in enumerate(words):
        name = word.lstrip("-")
        if name in _JOINED and word in (f"--{name}", f"-{name}") and i + 1 < len(words):
            words[i : i + 2] = [f"--{name}={words[i + 1]}", ""]
        elif word.startswith("-") and name.partition("=")[0].partition(".")[0] in _JOINED:
            words[i] = f"--{name}"
    return [word for word in words if word]


def _no_model(init: str) -> None:
    """The `ModelOf` of a config that follows no model."""


def read_config(
    values: flags.FlagValues,
    model_of: ModelOf = _no_model,
    *,
    offline: bool = False,
    size_of: SizeOf | None = None,
) -> Config:
    """Returns the parsed flag as a frozen `Config`; a run reads it by `training.resolve`.

    If the file gives no vocabulary size, the size is that of the store; with a task, that of the
    model to start from, or of the task's tokenizer. A setting of `ARCHITECTURE` that it does not
    give is that of the model to start from, without one the default.

    Args:
        model_of: reads the settings of a model, given `config.init`.
        offline: nothing in a bucket is read; the vocabulary size of a store there is the default.
        size_of: see `vocab_size`.

    Raises:
        UserError: an unknown key, a wrong value, a damaged store, or as `model_of`.
    """
    config = _config(plain(values[_FLAG].value), model_of, offline=offline, size_of=size_of)
    check_start(config, config_flags.get_override_values(values[_FLAG]))
    return config


def _config(
    values: dict[str, Any],
    model_of: ModelOf,
    previous: ModelConfig | None = None,
    *,
    offline: bool = False,
    size_of: SizeOf | None = None,
) -> Config:
    """Returns values of a file as a `Config` that remembers which of them the file does not set.

    previous: has them if there is neither a store nor a model; None for the defaults.
    """
    check_not_ablation(values)
    is_changed, flat, previous = bool(previous), flatten(values), previous or ModelConfig()
    unset = [name for name in (_VOCABULARY, *ARCHITECTURE) if flat.get(f"model.{name}", 0) is None]
    task, init = bool(flat.get("task.name")), flat.get("init")
    follows = [name for name in unset if name != _VOCABULARY or task]
    model = model_of(init) if follows and init and isinstance(init, str) else None
    found = {name: getattr(model or previous, name) for name in follows}
    if _VOCABULARY in unset and not (task and model):
        size = vocab_size(flat, offline=offline, of_hub=size_of)
        found[_VOCABULARY] = size or previous.vocab_size
    if unset:
        values["model"] |= found
    config = from_dict(values, Config)
    if not is_changed:  # one network of two, or the windows, may be taken by `Config.replace`
        check_effect(config, unset)
    keys = tuple(f"model.{name}" for name in unset)
    again = functools.partial(_config, model_of=model_of, offline=offline, size_of=size_of)
    return config.with_unset(keys, again)


def load(
    name: str,
    changes: Mapping[str, Any] = MappingProxyType({}),
    model_of: ModelOf = _no_model,
    size_of: SizeOf | None = None,
) -> Config:
    """Returns a shipped config by name, or that of a file, with other values by key.

    model_of, size_of: as in `read_config`.

    Raises:
        UserError: neither a shipped name nor a file, get_config() fails, an unknown key, or a wrong
            value.
    """
    config = _config(updated(values_of(name), changes), model_of, size_of=size_of)
    check_start(config, changes)
    return config


def values_of(name: str) -> dict[str, Any]:
    """Returns the values of a shipped config by name, or of a file; raises UserError as `load`."""
    return dict(plain(execute(_find(name, name))))


def load_values(
    values: Mapping[str, Any],
    changes: Mapping[str, Any] = MappingProxyType({}),
    model_of: ModelOf = _no_model,
) -> Config:
    """Returns the values of a config file as a `Config`, with other values by key; see `load`."""
    return _config(updated(values, changes), model_of)


def slice_of(path: Path) -> str | None:
    """Returns the TPU slice a config file is meant for, its `SLICE`; None if it does not set one.

    Raises:
        UserError: the file cannot be executed.
    """
    if _is_values(path):
        return None
    try:
        return _run(path).get("SLICE")
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}: cannot be read ({reason})") from error


def follows_model(values: flags.FlagValues) -> bool:
    """Returns whether the parsed flag's config leaves the width to the model that `config.init`
    names; without one it is the default."""
    return flatten(plain(values[_FLAG].value)).get("model.hidden_size", 0) is None


def path_of(values: flags.FlagValues) -> Path:
    """Returns the path of the parsed flag's config file."""
    return Path(config_flags.get_config_filename(values[_FLAG]).removeprefix(_READ))


def as_typed(word: str) -> str:
    """Returns the word of a flag without what only ml_collections needs of it."""
    return word.replace(f"--{_FLAG}={_READ}", f"--{_FLAG}=", 1)


def words_of(values: flags.FlagValues) -> str:
    """Returns the parsed flag and its overrides, to be typed again."""
    path, changed = path_of(values), config_flags.get_override_values(values[_FLAG])
    name = path.stem if shipped().get(path.stem) == path else str(path)
    words = [f"--{_FLAG}={name}", *(f"--{_FLAG}.{key}={value}" for key, value in changed.items())]
    return shlex.join(words)


def _is_values(path: Path) -> bool:
    """Returns whether a config file is read, not executed; UserError if it is neither."""
    if path.suffix.lower() not in (".py", *values_file.SUFFIXES):
        raise UserError(f"{path}: a config file must be .py, .yaml, .yml or .json")
    return path.suffix.lower() != ".py"


def _find(name: str, where: str) -> Path:
    """Returns the path of a shipped config or of a file; UserError if neither exists."""
    named = shipped() | shipped_ablations()
    path = named.get(name) or Path(name)
    if not path.is_file():
        check_not_special(path)
        if is_hub(name):
            raise UserError(
                f"{where}: a model, not a config; to start from it, give --config.init={name} "
                "after a config, such as --config=continue_domain"
            )
        raise UserError(f"{where}: neither a file nor a shipped config{nearest(name, named)}")
    return path


def _run(path: Path) -> dict[str, Any]:
    """Returns the globals of a config file."""
    allow_configs_import()
    return runpy.run_path(str(path))


def execute(path: Path) -> ConfigDict:
    """Returns what a config file has; UserError if it is of another kind, or fails."""
    if _is_values(path):
        return values_file.get_config(str(path))
    try:
        found = _run(path)["get_config"]()
    except UserError as error:  # such as of a row that the file adds
        raise UserError(f"{path}: {error}") from error
    except Exception as error:  # user code may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}: get_config() failed ({reason})") from error
    if not isinstance(found, ConfigDict):
        raise UserError(f"{path}: get_config() returns {type(found).__name__}; return a ConfigDict")
    return found


def _check_overrides(
    path: Path,
    words: Sequence[str],
    check: Callable[[Mapping[str, Any]], object] = lambda values: None,
) -> None:
    """check: of the values of the file."""
    values = plain(execute(path))
    check(values)
    known = flatten(values)
    for word in words:
        if word.startswith(f"--{_FLAG}."):
            key = word.removeprefix(f"--{_FLAG}.").partition("=")[0]
            if key not in known:
                raise UserError(f"unknown key --{_FLAG}.{key}{key_hint(key, known)}")
