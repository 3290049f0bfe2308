"""Launch backends, one module each."""
