"""Clean raw text and split it into sentences."""
