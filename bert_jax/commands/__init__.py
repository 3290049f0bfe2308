"""What `bert-jax` can do, a module for each part of the way; heavy modules load where used."""
