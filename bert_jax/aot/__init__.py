"""Ahead-of-time analysis of a training step on a TPU slice: memory and time, without a TPU."""
