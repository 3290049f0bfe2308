"""Splits documents into examples from lengths alone, with a function per kind of pairing."""
