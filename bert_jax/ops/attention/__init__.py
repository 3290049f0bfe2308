"""Self-attention's core in several forms that give the same result."""
