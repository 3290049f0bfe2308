"""`bert-jax demo`: the way from text to filled masks on one machine."""
