"""Families of models in transformers. To add one, write a file and list it in known_layouts.py."""
