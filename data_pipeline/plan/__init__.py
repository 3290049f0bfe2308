"""Which examples each batch of an epoch holds, computed once and kept."""
