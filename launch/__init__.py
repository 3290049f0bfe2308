"""Launches jobs of several processes; imports no JAX."""
