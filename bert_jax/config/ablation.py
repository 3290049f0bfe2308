"""The values of an ablation file, `configs/ablations/*.py`: which runs differ in which settings.

An ablation file returns `ablation(…)`, as a config file returns a `ConfigDict`.
"""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from ml_collections import ConfigDict

from bert_jax.config.serialization import from_dict
from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError

Rows = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationConfig:
    """Pairs and lists are tuples, because a `ConfigDict` sorts its keys and has none with dots.

    Attributes:
        base: a shipped config's name, or the path of one.
        store: the token store of all runs.
        changes: (key, value) that all runs change in `base`.
        variants: (name, changes) of each; the first is the reference.
        seeds: "0,1,2", of the runs of each variant.
        against: (variant, variant) of further comparisons, which are exploratory.
        equal: what the runs of all variants spend alike.
        consequences: of "steps" and "real_tokens", those in which variants may differ because of
            the setting itself, so that a difference between them is still that of the setting.
        measures: forms of held-out text, "single/token,single/span", see
            `bert_jax/training/eval_setting.py`, and "task/NAME" of `tasks`.
        tasks: (name, settings) of tasks that each run is fine-tuned for, as changes of `glue`.
        primary: the measure on which the variants are judged.
        null: variants may be the same, to see what no difference looks like.
        published: (title, rows) of tables to show beside the results; the first row is the header.
    """

    base: str = "demo"
    store: str = ""
    changes: tuple[tuple[Any, ...], ...] = ()
    variants: tuple[tuple[Any, ...], ...] = ()
    against: tuple[tuple[Any, ...], ...] = ()
    seeds: str = "0,1,2,3,4"
    equal: Literal["steps", "real_tokens", "flops"] = "real_tokens"
    consequences: tuple[Literal["steps", "real_tokens"], ...] = ()
    measures: str = "single/token,single/span"
    tasks: tuple[tuple[Any, ...], ...] = ()
    primary: str = "single/token"
    null: bool = False
    published: tuple[tuple[Any, ...], ...] = ()


def ablation(
    *,
    changes: Mapping[str, Any] | None = None,
    variants: Mapping[str, Mapping[str, Any]],
    against: Mapping[str, str] | None = None,
    seeds: Sequence[int] = range(5),
    measures: Sequence[str] = ("single/token", "single/span"),
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
    published: Mapping[str, Rows] | None = None,
    **others: Any,
) -> ConfigDict:
    """Returns what an ablation file returns; names as in `AblationConfig`.

    Raises:
        UserError: an unknown name or a wrong value.
    """
    _check("seeds", seeds, Iterable, "a tuple of seeds, such as (0, 1, 2)")
    _check("measures", measures, Iterable, 'a tuple of names, such as ("single/token",)')
    values = {
        "changes": _items("changes", changes or {}, "values by key"),
        "variants": _pairs("variants", variants),
        "against": _items("against", against or {}, "variants, each with what it is compared with"),
        "tasks": _pairs("tasks", tasks or {}),
        "seeds": ",".join(map(str, seeds)),
        "measures": ",".join(map(str, measures)),
        "published": _items("published", published or {}, "tables by title"),
        **others,
    }
    made = from_dict(values, AblationConfig, "ablation")
    return ConfigDict({f.name: getattr(made, f.name) for f in dataclasses.fields(made)})


def _pairs(key: str, settings: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        (name, _items(f"{key}[{name!r}]", own, "changes by key"))
        for name, own in _items(key, settings, f"{key} by name")
    )


def _items(key: str, value: Mapping[str, Any], of: str) -> tuple[tuple[str, Any], ...]:
    _check(key, value, Mapping, f"a dict of {of}")
    return tuple(value.items())


def _check(key: str, value: Any, kind: type, remedy: str) -> None:
    """Raises UserError if a value is of another kind; text is no tuple of its letters."""
    if not isinstance(value, kind) or isinstance(value, str):
        raise UserError(f"ablation, {key}={value!r:.60}: give {remedy}")


IS_ABLATION: Final = "variants"  # a key that no other config has


def check_kind(name: str, values: Mapping[str, Any], *, ablation: bool) -> None:
    """Raises UserError, with the command that takes it, for the values of a file of another kind.

    name: of the file, as typed. ablation: the command takes ablations.
    """
    if (IS_ABLATION in values) == ablation:
        return
    config = shlex.join([f"--config={name}"])
    if not ablation:
        raise UserError(
            f"{config}: an ablation, which has several configurations: bert-jax ablate run {config}"
        )
    command = "finetune" if _is_for_tasks(values) else "pretrain"
    raise UserError(
        f"{config}: a configuration of one run, not an ablation: bert-jax {command} {config}"
    )


def _is_for_tasks(values: Mapping[str, Any]) -> bool:
    """Returns whether a config of one run sets what only tasks have, or rows in which nothing is
    masked but for the one position that every row has."""
    task, phases = values.get("task") or {}, values.get("phases") or [{}]
    usual = {field.name: field.default for field in dataclasses.fields(TaskConfig)}
    differs = any(value != usual.get(name, value) for name, value in task.items())
    return differs or all(phase.get("max_predictions") == 1 for phase in phases)


def check_not_ablation(values: Mapping[str, Any]) -> None:
    """Raises UserError if the values of a config file are those of an ablation."""
    if IS_ABLATION in values:
        raise UserError(
            "--config: an ablation, which has several configurations; give it to "
            "`bert-jax ablate run`, or one of the shipped configs here"
        )
