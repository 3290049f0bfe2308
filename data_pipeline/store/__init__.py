"""The token store: its files, its manifest, its checks."""
