"""Plans an epoch: which examples are in each batch, computed once and cached."""
