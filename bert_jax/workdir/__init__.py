"""The workdir of a run: its files, its lock and the identity of its run."""
