"""Shipped configurations, one file each."""
