"""Implementations of self-attention that compute the same result."""
