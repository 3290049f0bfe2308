"""Optimizers, as optax transformations, and learning rates."""
