"""The vocabulary size of a token store or a tokenizer, which a config takes unless it gives one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Returns the number of entries of a tokenizer on the Hugging Face hub.
SizeOf = Callable[[str], int]


def vocab_size(
    values: Mapping[str, Any], *, offline: bool = False, of_hub: SizeOf | None = None
) -> int | None:
    """Returns the size of the vocabulary that a configuration names; None if none is there, which a
    run reports.

    Args:
        values: of the configuration, flattened.
        offline: nothing in a bucket or on the hub is read; None for it.
        of_hub: asked for a tokenizer on the hub; without it, None is returned for one.

    Raises:
        UserError: the store or the tokenizer is damaged.
    """
    if not values.get("task.name"):
        return _of_store(values.get("data.store"), offline=offline)
    tokenizer = values.get("task.tokenizer")
    from bert_jax.storage.hub import is_hub
    from bert_jax.storage.read_files import path_of
    from bert_jax.storage.remote import is_remote, storage_errors

    if not isinstance(tokenizer, str) or (offline and is_remote(tokenizer)):
        return None
    if is_hub(tokenizer):
        return of_hub(tokenizer) if of_hub and not offline else None
    with storage_errors(tokenizer):
        if not path_of(tokenizer).is_file():
            return None
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

    return Tokenizer.load(tokenizer).vocab_size


def _of_store(store: object, *, offline: bool) -> int | None:
    from bert_jax.data_pipeline.store.manifest import MANIFEST, read_manifest
    from bert_jax.storage.hub import check_not_hub
    from bert_jax.storage.remote import is_remote

    if not isinstance(store, str) or not store:
        return None
    check_not_hub(store, "config.data.store=")
    if is_remote(store):
        return None if offline else int(read_manifest(store)["vocab_size"])
    if (Path(store) / MANIFEST).is_file():
        return int(read_manifest(store)["vocab_size"])
    return None
