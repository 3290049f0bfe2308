"""An ablation: its variants, its seeds and what they are measured on, checked before anything runs.

`budget.py` decides the steps of the variants.
"""

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bert_jax.ablation import tasks
from bert_jax.ablation.places import PLACES, base_of, from_any_folder
from bert_jax.ablation.stores import Stores, check_comparable
from bert_jax.ablation.tasks import is_task
from bert_jax.config.ablation import IS_ABLATION, AblationConfig
from bert_jax.config.config_files import load_values
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.serialization import flatten, from_dict, to_dict
from bert_jax.data_pipeline.plan.cache import plan_digest
from bert_jax.data_pipeline.settings import checked
from bert_jax.errors import UserError, nearest
from bert_jax.storage.digest import json_digest
from bert_jax.training.batches import plan_spec
from bert_jax.training.eval_setting import OWN, EvalSetting
from bert_jax.training.initial_checks import check_source
from bert_jax.training.resolve import find_architecture
from bert_jax.training.teacher import check_has_teacher

_NAME: Final = re.compile(r"[^/\\\x00-\x1f]+")  # of a variant: also of a folder
_DECIDED: Final = re.compile(r"seed|phases\[\d+\]\.steps")


@dataclasses.dataclass(frozen=True)
class Variant:
    """A variant of the base, with the seed of the first run."""

    name: str
    changes: Mapping[str, Any]  # key -> value, of this variant alone
    config: Config


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: a variant with a seed."""

    variant: str
    seed: int
    config: Config
    changes: Mapping[str, Any]  # of the base, by key

    @property
    def name(self) -> str:
        return f"{self.variant}/{self.seed}"


@dataclasses.dataclass(frozen=True)
class Ablation:
    """A checked ablation; the first variant is the reference."""

    values: AblationConfig
    base: Mapping[str, Any]  # values of the file that `values.base` names, without any change
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    measures: tuple[str, ...]  # as in the file
    length: int  # of the held-out forms: that of the reference's last phase

    @property
    def reference(self) -> str:
        return self.variants[0].name

    @property
    def compared(self) -> dict[str, tuple[str, str]]:
        """Returns (variant, what it is compared with) of each comparison: of all variants with the
        reference, by their names, and then "span_boundary against span" of the file."""
        found = {variant.name: (variant.name, self.reference) for variant in self.variants[1:]}
        more = {f"{own} against {other}": (own, other) for own, other in self.values.against}
        return found | more

    @property
    def texts(self) -> tuple[str, ...]:
        """The measures on held-out text."""
        return tuple(measure for measure in self.measures if not is_task(measure))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The measures that are tasks."""
        return tuple(filter(is_task, self.measures))

    def form(self, measure: str) -> str:
        """Returns the full name of a measure's form, with its length; a task has none."""
        return measure if ":" in measure or is_task(measure) else f"{measure}:{self.length}"


def parse_ablation(values: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Ablation:
    """Returns the ablation with the values of its file.

    Args:
        base: the values of its base as `ablation.json` records them, so that no file is executed
            that a workdir names; None to read the base.

    Raises:
        UserError: no variants, a key or a measure that does not exist, a seed that is given twice,
            two variants that are the same, or a measure that not all variants can have.
    """
    if IS_ABLATION not in values:
        raise UserError(
            "--config: a configuration of one run, not an ablation; give a file with variants "
            "(docs/ablations.md shows one)"
        )
    given = from_any_folder(from_dict(values, AblationConfig))
    if len(given.variants) < 2:
        raise UserError(
            f"config.variants: {len(given.variants)} given; an ablation has a reference and at "
            "least one variant to compare with it"
        )
    if not given.store:
        raise UserError("config.store is empty; give --config.store=… with the folder of a store")
    seeds = _seeds(given.seeds)
    shared = {**dict(given.changes), "data.store": given.store, "seed": seeds[0]}
    base = base_of(given) if base is None else base
    variants = [_variant(name, dict(own), base, shared) for name, own in given.variants]
    _check_different(variants, null=given.null)
    measures = tuple(filter(None, (part.strip() for part in given.measures.split(","))))
    length = variants[0].config.phases[-1].seq_length
    found = Ablation(given, base, tuple(variants), seeds, measures, length)
    _check_against(found)
    _check_carried(found)
    _check_measures(found)
    return found


def _seeds(text: str) -> tuple[int, ...]:
    hint = typing.get_type_hints(Config, include_extras=True)["seed"]
    try:
        seeds = [checked(int(part), hint, "config.seeds: seed") for part in text.split(",")]
    except ValueError:
        raise UserError(f"config.seeds={text!r}: give whole numbers, such as 0,1,2,3,4") from None
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise UserError(f"config.seeds={text!r}: {twice[0]} is given twice; each seed is one run")
    return tuple(seeds)


def _variant(
    name: str, changes: Mapping[str, Any], base: Mapping[str, Any], shared: Mapping[str, Any]
) -> Variant:
    where = f"config.variants, {name!r}"
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise UserError(f"{where}: give a name that a folder can have")
    if decided := next(filter(_DECIDED.fullmatch, changes), None):
        raise UserError(
            f"{where}: {decided} is the same for all variants; it follows from config.seeds or "
            "config.equal"
        )
    try:
        config = load_values(base, {**shared, **changes}, _architecture)
        check_has_teacher(config)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return Variant(name, changes, config)


def _architecture(source: str) -> ModelConfig:
    """Returns the architecture of the model that a run starts from; UserError if it is not there,
    since a plan with another one would be that of other runs."""
    if (found := find_architecture(source)) is None:
        check_source(source)
        raise UserError(
            f"config.init={source}: has no config.json; give the folder of a run, an import or "
            "an export"
        )
    return found


def _check_different(variants: Sequence[Variant], *, null: bool) -> None:
    seen: dict[str, str] = {}
    for variant in variants:
        text = repr(flatten(to_dict(variant.config)))
        if text in seen and not null:
            raise UserError(
                f"config.variants: {seen[text]!r} and {variant.name!r} are the same configuration; "
                "remove one, or set config.null=True to compare a variant with itself"
            )
        seen.setdefault(text, variant.name)
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise UserError(f"config.variants: two have the same name among {', '.join(names)}")
    shapes = {len(variant.config.phases) for variant in variants}
    if len(shapes) > 1:
        raise UserError(
            "config.variants: give all the same number of phases; config.equal applies to each"
        )


def _check_against(ablation: Ablation) -> None:
    names = [variant.name for variant in ablation.variants]
    for pair in ablation.values.against:
        for name in pair:
            if name not in names:
                raise UserError(
                    f"config.against: {name!r} is not a variant{nearest(str(name), names)}"
                )
        own, other = pair
        if own == other or ablation.reference in pair:
            raise UserError(
                f"config.against: {own!r} and {other!r}; give two variants other than the "
                "reference, with which every variant is compared anyway"
            )


def _check_carried(ablation: Ablation) -> None:
    """Raises UserError if variants that begin at the step of a model are to spend alike by anything
    but steps: those that it has done are not trained again."""
    for variant in ablation.variants:
        if variant.config.init_optimizer == "carry" and ablation.values.equal != "steps":
            raise UserError(
                f"config.equal={ablation.values.equal}: {variant.name!r} begins at the step of its "
                "model (init_optimizer=carry), so that it trains fewer steps than it has; set "
                "config.equal=steps"
            )


def _check_measures(ablation: Ablation) -> None:
    if ablation.values.primary not in ablation.measures:
        near = nearest(ablation.values.primary, ablation.measures)
        raise UserError(f"config.primary={ablation.values.primary!r} is not a measure{near}")
    for variant in ablation.variants:
        try:
            tasks.check(ablation.values, ablation.measures, variant.config.model)
        except UserError as error:
            of = "" if variant.name == ablation.reference else f" (variant {variant.name!r})"
            raise UserError(f"{error}{of}") from None
    check_comparable(ablation.variants, ablation.texts)
    for measure in ablation.texts:
        if measure == OWN:
            raise UserError("config.measures: 'own' cannot compare variants; leave it out")
        form = EvalSetting.parse(measure, ablation.length)
        reasons: dict[str, UserError] = {}
        for variant in ablation.variants:
            try:
                form.apply(variant.config, variant.config.phases[-1])
            except UserError as error:
                reasons[variant.name] = error
        if reasons:
            raise UserError(
                f"config.measures: {measure} cannot be measured for {', '.join(reasons)} "
                f"({next(iter(reasons.values()))}); give one that fits all variants"
            )


def runs(ablation: Ablation) -> list[Run]:
    """Returns all runs, seed by seed, so that an interrupted ablation has whole comparisons."""
    values = ablation.values
    base = flatten(
        to_dict(load_values(ablation.base, {"data.store": values.store}, find_architecture))
    )
    always = {"data.store": values.store}
    made = []
    for seed in ablation.seeds:
        for variant in ablation.variants:
            config = dataclasses.replace(variant.config, seed=seed)
            settings = flatten(to_dict(config)).items()
            changes = {
                key: value
                for key, value in settings
                if base[key] != value or (value and key in PLACES)
            }
            made.append(Run(variant.name, seed, config, always | changes | {"seed": seed}))
    return made


def plan_digests(planned: Sequence[Run], stores: Stores) -> dict[str, str]:
    """Returns for each run, by its name, a digest of its training examples: of the plans of all
    phases. Runs that differ in other settings alone see the same ones."""
    found = {}
    for run in planned:
        store = stores[run.config.data.store]
        specs = [plan_spec(run.config, store.train, phase) for phase in run.config.phases]
        plans = [plan_digest(store.train, each, store.sources) for each in specs]
        found[run.name] = json_digest(plans)[:12]
    return found


def words(ablation: Ablation, run: Run, workdir: object) -> list[str]:
    """Returns the words of `bert-jax` that make a run: an ordinary `pretrain`."""
    settings = [f"--config.{key}={value}" for key, value in run.changes.items()]
    return ["pretrain", f"--config={ablation.values.base}", *settings, f"--workdir={workdir}"]


def shard_of(items: Sequence[Run], text: str | None) -> list[Run]:
    """Returns the part "3/16" of the runs; UserError if it is not of that form."""
    if text is None:
        return list(items)
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard={text}: give I/N for part I of N, from 1/N to N/N")
    return list(items[int(match[1]) - 1 :: int(match[2])])
