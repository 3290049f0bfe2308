"""Lets a user add a kind of masking, a source, an optimizer or a task without a fork."""
