"""Build a token store from raw text, in several processes."""
