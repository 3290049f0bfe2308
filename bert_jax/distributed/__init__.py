"""One process among those of a job: finding the others, stopping and ending with them."""
