"""Where and how a job runs; no JAX."""
