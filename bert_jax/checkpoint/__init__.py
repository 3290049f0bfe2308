"""Checkpoints: written while training goes on, verified bit for bit when used."""
