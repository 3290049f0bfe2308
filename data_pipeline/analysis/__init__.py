"""What a token store holds: lengths, examples, baselines."""
