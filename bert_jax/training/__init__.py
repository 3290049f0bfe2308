"""Train and evaluate: the loop, the step, the state."""
