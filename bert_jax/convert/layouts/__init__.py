"""Families of models in transformers. To add one, write a file here and list it in registry.py."""
