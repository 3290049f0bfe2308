"""Writes the folders of exports and imported models, with a model card."""
