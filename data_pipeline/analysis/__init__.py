"""Statistics of a token store: lengths, examples, baselines."""
