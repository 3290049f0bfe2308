"""TPU and GPU types and slices."""
