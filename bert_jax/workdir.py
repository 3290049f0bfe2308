"""What a run's folder belongs to: its configuration, its data, its tokenizer.

<workdir>/config.json     configuration and the digests of what it was trained on
          tokenizer.json  the tokenizer of the store, as it will be exported
          checkpoints/ metrics.jsonl tensorboard/
"""

import json
import re
from typing import Any

from etils import epath

from bert_jax.config import Config
from bert_jax.config_values import flatten, to_dict
from bert_jax.errors import UserError
from data_pipeline.store import TokenStore

# What may change between two starts of one run: none of it changes which examples a step sees or
# what the parameters mean.
_MAY_CHANGE = re.compile(
    r"config\.(log_every_steps|data\.store|phases\[\d+\]\.steps|optimizer\.(?!name)"
    r"|mesh\.|compute\.|checkpoint\.|evaluation\.)"
)


def describe(config: Config, store: TokenStore, rows_per_epoch: int) -> dict[str, Any]:
    """The run's description: goes into `config.json` and into every checkpoint."""
    return {
        "config": to_dict(config),
        "data": {
            "tokenizer": store.tokenizer_digest,
            "train": store.train.digest,
            "held_out": store.held_out.digest,
            "rows_per_epoch": rows_per_epoch,
        },
    }


def claim(workdir: epath.Path, description: dict[str, Any], *, resuming: bool) -> None:
    """Writes the description; when the run goes on, first checks that it may.

    Raises:
        UserError: the workdir was started with another store, tokenizer or setting that decides
            what a step sees; names every such value, old and new.
    """
    path = workdir / "config.json"
    if resuming and path.exists():
        old = json.loads(path.read_text())
        if old["data"]["tokenizer"] != description["data"]["tokenizer"]:
            raise UserError(
                f"{workdir}: its checkpoint was trained with tokenizer "
                f"{old['data']['tokenizer'][:12]}…, the store was made with "
                f"{description['data']['tokenizer'][:12]}…; give that store or a new --workdir"
            )
        changes = _changes(old, description)
        if changes:
            raise UserError(
                f"{workdir}: cannot go on with another {'; '.join(changes)}; "
                "put the old values back or give a new --workdir"
            )
    _write(path, json.dumps(description, indent=2) + "\n")


def keep_tokenizer(workdir: epath.Path, store: TokenStore) -> None:
    """Copies the store's tokenizer into the workdir."""
    _write(workdir / "tokenizer.json", store.tokenizer_path.read_text(encoding="utf-8"))


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after = flatten(old), flatten(new)
    keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    return [
        f"{key} ({before.get(key)} → {after.get(key)})"
        for key in keys
        if not _MAY_CHANGE.match(key)
    ]


def _write(path: epath.Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.tmp"
    temporary.write_text(text)
    temporary.replace(path)
