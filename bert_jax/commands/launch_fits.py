"""Checks before a launch that a config compiles for its TPU slices and fits their memory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.launch.hardware.slices import Slice
from bert_jax.launch.preflight import Check, CheckFailedError

if TYPE_CHECKING:
    from bert_jax.config.schema import Config


def fits_check(config: "Config", tpu_slice: Slice) -> Check:
    """Returns the check that `bert-jax compile` finds that every phase fits.

    A result is cached under everything that it depends on. Without libtpu nothing is compiled, and
    the line says so.
    """
    return Check("config", lambda: _probe(config, tpu_slice))


def _probe(config: "Config", tpu_slice: Slice) -> str:
    from bert_jax.aot import topology
    from bert_jax.errors import UserError

    try:
        topology.library()
    except UserError as error:
        return f"not compiled for {tpu_slice.name}: {error}"
    cached = _cached(config, tpu_slice)
    if cached.is_file():
        return f"fits {tpu_slice.name}, as compiled before"
    topology.prepare()
    from bert_jax.aot import report
    from bert_jax.data_pipeline.storage.atomic import write_text
    from bert_jax.runtime.console import working

    result = report.make("the config", config, tpu_slice, range(len(config.phases)), working)
    wrong = [phase for phase in result.phases if not phase.memory.fits]
    for phase in wrong:
        advice = " or ".join(remedy.flags for remedy in phase.remedies[:2])
        raise CheckFailedError(
            f"phase {phase.index} does not fit the memory of {tpu_slice.name}",
            f"{f'try {advice}; ' if advice else ''}`bert-jax compile` shows what uses it",
        )
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_text(cached, json.dumps({"slice": tpu_slice.name}))
    return f"fits {tpu_slice.name}"


def _cached(config: "Config", tpu_slice: Slice) -> Path:
    """Returns the file that exists if a config fits: named by config, slice, compiler and code."""
    import bert_jax
    from bert_jax.aot import topology
    from bert_jax.config.serialization import to_dict
    from bert_jax.data_pipeline.storage.cache_dir import cache_dir
    from bert_jax.data_pipeline.storage.digest import file_digest, json_digest
    from bert_jax.runtime.versions import versions

    sources = sorted(Path(bert_jax.__file__).parent.rglob("*.py"))
    code = [file_digest(path) for path in sources]
    about = [to_dict(config), tpu_slice.name, topology.version(), versions(), code]
    return cache_dir() / "launch" / f"{json_digest(about)}.json"
