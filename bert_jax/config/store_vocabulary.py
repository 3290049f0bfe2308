"""The vocabulary size of a token store, which a config takes unless it gives one."""

from pathlib import Path


def store_vocab_size(store: object) -> int | None:
    """Returns the vocabulary size of a store; None if none is there, which a run reports.

    Raises:
        UserError: the store is damaged.
    """
    from bert_jax.data_pipeline.storage.remote import is_remote
    from bert_jax.data_pipeline.store.manifest import MANIFEST, read_manifest

    if not isinstance(store, str) or not store:
        return None
    if is_remote(store) or (Path(store) / MANIFEST).is_file():
        return int(read_manifest(store)["vocab_size"])
    return None
