"""How a user adds a kind of masking, a source, an optimizer or a task without a fork."""
