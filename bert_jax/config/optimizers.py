"""The optimizers, by the names of `config.optimizer.name`. Needs no JAX."""

from typing import Any, Final

from bert_jax.extensions.registry import Registry

# A new one is a file that defines an `Optimizer`, and a row.
OPTIMIZERS: Final[Registry[Any]] = Registry(
    "optimizer",
    "bert_jax.optimizers.optimizer:Optimizer",
    {
        "bert_adamw": "bert_jax.optimizers.adam:BERT_ADAMW",
        "adamw": "bert_jax.optimizers.adam:ADAMW",
        "stable_adamw": "bert_jax.optimizers.stable_adamw:STABLE_ADAMW",
        "muon": "bert_jax.optimizers.muon:MUON",
        "lamb": "bert_jax.optimizers.lamb:LAMB",
        "lamb_albert": "bert_jax.optimizers.lamb:LAMB_ALBERT",
        "lamb_all": "bert_jax.optimizers.lamb:LAMB_ALL",
        "lamb_clamped": "bert_jax.optimizers.lamb:LAMB_CLAMPED",
    },
    key="optimizer.name",
)
