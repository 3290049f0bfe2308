"""Checks that the disk of each host has room, before the first array."""

import shutil

from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import UserError
from bert_jax.storage.cache_dir import cache_dir

# Bytes for compiled programs, the plans of an epoch and temporary files. A copy of the store, and
# what an agent installs, are checked with their own sizes.
_NEEDED = 2**30


def check_disk(peers: ProcessGroup) -> None:
    """Raises UserError if the disk with this host's caches is nearly full.

    One process runs on without caches; in a job of many hosts one of them would delay all others at
    each start, and its log or a copy of the store may be what fails, hours later.
    """
    folder = cache_dir()
    disk = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(disk).free
    if free < _NEEDED:
        raise UserError(
            f"{peers.name(peers.process_id)}: {folder}: {free / 1e9:.1f} GB free, "
            f"{_NEEDED / 1e9:.1f} needed for compiled programs and plans; free some space there, "
            "or set BERT_JAX_CACHE to a folder on another disk"
        )
