"""Pretraining objectives: heads, losses and metrics."""
