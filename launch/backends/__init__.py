"""Where a job runs: one module each."""
