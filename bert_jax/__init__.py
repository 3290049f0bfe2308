"""Pretrain BERT-family encoders in JAX."""
