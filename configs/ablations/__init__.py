"""Ablations for `bert-jax ablate`: each file compares variants of one config."""
