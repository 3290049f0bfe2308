"""Reads TensorFlow checkpoints without TensorFlow."""
