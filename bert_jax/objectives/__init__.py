"""What the encoder is trained to predict: heads, losses and their sums."""
