"""Parses the optimized HLO text of a compiled program."""
