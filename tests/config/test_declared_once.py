"""A setting of the data is declared once: one default, one check, one message."""

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.config.schema import Config, DataConfig
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.masking.masking_settings import MaskingSettings
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.plan.plan_settings import PlanSettings
from bert_jax.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {field.name: field.default for field in dataclasses.fields(DataConfig)}


def defaults_in(path: Path) -> Iterator[str]:
    """Names of settings that a file gives a default, as a field or as a parameter; None is none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        pairs: list[tuple[ast.expr | ast.arg, ast.expr | None]] = []
        if isinstance(node, ast.ClassDef):
            pairs = [(n.target, n.value) for n in node.body if isinstance(n, ast.AnnAssign)]
        elif isinstance(node, ast.FunctionDef):
            given = [*node.args.posonlyargs, *node.args.args][::-1]
            pairs = [*zip(given, node.args.defaults[::-1], strict=False)]
            pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        for target, value in pairs:
            name = target.arg if isinstance(target, ast.arg) else getattr(target, "id", "")
            if value is not None and ast.unparse(value) != "None" and name in FIELDS:
                yield name


def test_every_setting_has_one_default() -> None:
    found: Counter[str] = Counter()
    for package in ("bert_jax/config", "bert_jax/training", "data_pipeline"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name == "ablation.py":  # its store is that of all runs
                continue
            found.update(defaults_in(path))
    assert found == dict.fromkeys(FIELDS, 1)


@pytest.mark.parametrize(
    ("spec", "settings"), [(MaskingSpec(20), MaskingSettings), (PlanSpec(128), PlanSettings)]
)
def test_the_specs_of_a_phase_are_made_from_the_settings(spec, settings) -> None:
    own = {field.name for field in dataclasses.fields(settings)}
    assert own <= FIELDS.keys()
    assert DataConfig().values(settings) == {name: getattr(spec, name) for name in own}
    fields = {field.name for field in dataclasses.fields(spec)}
    assert fields & FIELDS.keys() == own


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask_rate": 1.5},
        {"masking": "tokens"},
        {"max_span": 0},
        {"random_tokens": "unigrams"},
        {"mask_share": 0.7, "random_share": 0.4},
        {"span_boundary": True},
        {"pairing": "nps"},
        {"separators": "sentences"},
        {"language_smoothing": 11.0},
        {"source_weights": "books=-1"},
        {"dupe_factor": -1},
    ],
    ids=str,
)
def test_a_wrong_value_has_the_same_message_everywhere(wrong: dict) -> None:
    spec = MaskingSpec if wrong.keys() <= {*MaskingSpec.__dataclass_fields__} else PlanSpec
    messages = set()
    for make in (
        lambda: spec(20, **wrong),
        lambda: DataConfig(**wrong),
        lambda: from_dict({"data": wrong}, Config),
    ):
        with pytest.raises(UserError) as error:
            make()
        messages.add(str(error.value))
    (message,) = messages
    assert message.startswith("config.data.")
