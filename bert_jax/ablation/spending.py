"""Measured cost of the runs of an ablation: time by cause, memory, and their software."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.ablation.measured import Measured
from bert_jax.ablation.results import Results
from bert_jax.metrics import goodput, run_records
from bert_jax.storage import json_record


@dataclasses.dataclass(frozen=True)
class Spending:
    """The measured cost of one run; it differs between repetitions."""

    wall_seconds: float  # from the first start to the last record of training
    seconds: Mapping[str, float]  # the same by cause, see `metrics/goodput.py`
    evaluation_seconds: float  # that the measures took after training, fine-tuning included
    tokens_per_second: float | None  # at the end
    peak_bytes: Mapping[str, int]  # of the last process, and of its device if that counts
    software: Mapping[str, str]  # of the last start

    @property
    def total_seconds(self) -> float:
        return self.wall_seconds + self.evaluation_seconds


def spending_of(results: Results) -> dict[str, Spending]:
    """Returns what each measured run spent, by its name."""
    return {name: _of(results, each) for name, each in results.measured.items()}


def _of(results: Results, each: Measured) -> Spending:
    written = list(run_records.records(results.workdir.run(each.run).metrics))
    spent = goodput.account(written)
    return Spending(
        wall_seconds=spent.wall,
        seconds=spent.seconds,
        evaluation_seconds=each.seconds,
        tokens_per_second=_last(written, "tokens_per_second", json_record.number, None),
        peak_bytes=_last(written, "peak_bytes", {str: json_record.number}, {}),
        software=_last(written, "versions", {str: json_record.text}, {}),
    )


def _last(written: list[dict[str, Any]], key: str, form: Any, default: Any) -> Any:
    """Returns the last value of a key that has the form in which it is written."""
    found = (record[key] for record in reversed(written) if key in record)
    return next((value for value in found if json_record.has_form(value, form)), default)


def evaluation_share(all_spent: Iterable[Spending]) -> float:
    """Returns the share of the time of runs in which they were measured after training."""
    found = list(all_spent)
    total = sum(each.total_seconds for each in found)
    return sum(each.evaluation_seconds for each in found) / total if total else 0.0


def software(all_spent: Iterable[Spending]) -> dict[str, str]:
    """Returns package -> version, all of them if they differ between runs; "commit" is that of the
    code."""
    found: dict[str, dict[str, None]] = {}
    for each in all_spent:
        for name, version in each.software.items():
            found.setdefault(name, {})[version] = None
    return {name: " and ".join(own) for name, own in found.items()}
