"""Plans an epoch: which examples are in each row, computed once and cached."""
