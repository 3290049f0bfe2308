"""The Python API: `bert_jax` exports its names."""
