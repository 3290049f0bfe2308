"""The backend of `launch slurm`: nodes of a Slurm cluster."""
