"""Counter-based random draws and the compiled loops that use them."""
