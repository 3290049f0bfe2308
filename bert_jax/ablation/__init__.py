"""Ablations: runs that differ in settings, and what their differences show."""
