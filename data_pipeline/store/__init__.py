"""The token store: files, manifest, verification."""
