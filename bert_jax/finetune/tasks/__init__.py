"""Tasks: their files, examples, encodings, metrics and kinds."""
