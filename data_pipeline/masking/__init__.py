"""Masking for masked language modelling: select positions, store their ids as labels, replace them.

One file per kind of masking, a `Mode` (`mode.py`); `masking_settings` lists the kinds and declares
what a user may set, `spec` precomputes it for compiled code, `replace` has the replacements, and
`scratch` the memory they share. Draws come from streams of the example's key, so that none
depends on the draws used by another: 0 selects, 1 replaces, 2 draws n-gram lengths, 3 rounds
RoBERTa's number of predictions, 4 makes the keys of replaced-token detection.
"""
