"""Data pipeline from raw text to masked batches, without JAX."""
