"""The token stores of an ablation: that of its file, and those that variants give.

Losses of masked tokens are comparable only between runs with the same vocabulary and the same
held-out text, whose own model predicts them, or of all of which a generator does. Else only tasks
compare them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.store.manifest import SPLITS, read_manifest, split_digest
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.errors import UserError
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS

Stores = Mapping[str, TokenStore]  # by path


class _Variant(Protocol):
    """See `spec.Variant`."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Config: ...


def open_stores(variants: Sequence[_Variant]) -> Stores:
    """Returns the stores of all variants; UserError if one cannot be opened."""
    paths = dict.fromkeys(variant.config.data.store for variant in variants)
    return {path: open_store(path, verify=False) for path in paths}


def identity(path: str) -> dict[str, Any]:
    """Returns what identifies a store: the digests of its text and of its tokenizer, and its
    sources in their order; UserError if it cannot be read."""
    manifest = read_manifest(path)
    found = {name: split_digest(name, manifest["files"]) for name in SPLITS}
    sources = [source["name"] for source in manifest["sources"]]
    return {**found, "tokenizer": manifest["tokenizer_digest"], "sources": sources}


def check_comparable(variants: Sequence[_Variant], texts: Sequence[str]) -> None:
    """Raises UserError if variants do not share the vocabulary or the held-out text, or if the
    generators of some, but not of all, predict masked tokens.

    texts: the measures on held-out text.
    """
    if not texts:
        return
    of_two, alone = (
        [v.name for v in variants if (REPLACED_TOKENS.name in learned_by(v.config)) is two]
        for two in (True, False)
    )
    if of_two and alone:
        raise UserError(
            f"config.measures: {texts[0]} compares masked tokens, but of {of_two[0]!r} a generator "
            f"predicts them, which is not the model that it pretrains, and of {alone[0]!r} the "
            "model; compare them by tasks alone, such as task/sst2"
        )
    reference = variants[0].config.data.store
    for variant in variants[1:]:
        path = variant.config.data.store
        if path == reference:
            continue
        own, theirs = identity(path), identity(reference)
        for key, what in (("tokenizer", "vocabulary"), ("held_out", "held-out text")):
            if own[key] != theirs[key]:
                raise UserError(
                    f"config.measures: {texts[0]} compares masked tokens, but {variant.name!r} has "
                    f"another {what} than {variants[0].name!r} ({path}); compare them by tasks "
                    "alone, such as task/sst2"
                )
        if own["train"] != theirs["train"] and (weighted := next(filter(_weighs_ids, texts), "")):
            raise UserError(
                f"config.measures: {weighted} masks by the counts of the training text, but "
                f"{variant.name!r} has another one than {variants[0].name!r} ({path}); measure "
                "another masking, such as single/token"
            )


def _weighs_ids(measure: str) -> bool:
    """Returns whether the training text decides which held-out tokens a measure masks."""
    masking = re.split("[@:]", measure.partition("/")[2])[0]
    return masking in MODES and MODES[masking].id_weights is not None
