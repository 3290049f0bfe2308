"""Metrics and events that a run records, and what is computed from them."""
