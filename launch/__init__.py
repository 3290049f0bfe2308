"""Launches jobs and describes hardware; imports no JAX."""
