"""Converts between our parameters and other libraries' checkpoints."""
