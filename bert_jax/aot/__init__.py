"""What a training step will do on a TPU slice, from compiling it ahead of time, without a TPU."""
