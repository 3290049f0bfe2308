"""Read the text of a compiled program."""
