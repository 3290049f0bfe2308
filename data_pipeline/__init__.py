"""From raw text to masked batches, without JAX."""
