"""What a run notes of itself, and what is read out of it."""
