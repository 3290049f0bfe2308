"""Checkpoints: written while training continues, verified bit for bit when read."""
