"""Folders of other programs: tables of their files and keys, and the check against them."""
