"""The commands of `bert-jax`, one module per group; heavy modules are imported where used."""
