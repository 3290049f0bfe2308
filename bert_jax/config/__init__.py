"""The settings of a run: their schema, their files, their JSON."""
