"""The configuration of a run: schema, config files and JSON."""
