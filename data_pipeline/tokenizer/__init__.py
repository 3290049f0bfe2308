"""WordPiece and SentencePiece vocabularies."""
