"""The BERT encoder and parts of its heads."""
