"""docs/configs.md lists every shipped config, and every key as it is declared."""

import re
from pathlib import Path

from bert_jax.config.on_resume import on_resume
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.config.shipped import shipped

PAGE = (Path(__file__).resolve().parents[2] / "docs/configs.md").read_text(encoding="utf-8")


def test_every_shipped_config_is_described() -> None:
    tables = PAGE.partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)) == set(shipped())


def test_every_key_is_described_as_it_is_declared() -> None:
    """Default and whether it may change on resume, of all keys of a group.

    Those of the deadlines are on another page.
    """
    defaults = {
        key: value
        for key, value in flatten(to_dict(Config())).items()
        if "." in key and not key.startswith("deadlines.")
    }
    table = PAGE.partition("| key | default | on resume | meaning |")[2]
    table = table.partition("\n\n")[0]
    described = {}
    for keys, values, change in re.findall(
        r"^\| (`.*?`) \| (.*?) \| (\w+) \|", table, re.MULTILINE
    ):
        names = re.findall(r"`([^`]+)`", keys)
        group = names[0].rpartition(".")[0]
        full = [f"{group}{name}" if name.startswith(".") else name for name in names]
        described |= zip(full, values.split(", "), strict=True)
        assert {on_resume(Config, name).value for name in full} == {change}, full
    del described["deadlines.*"]
    assert described.keys() == defaults.keys()
    assert described.pop("model.vocab_size") == "the store's"
    assert described == {key: shown(defaults[key]) for key in described}


def shown(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if type(value) is int else str(value) or '""'
