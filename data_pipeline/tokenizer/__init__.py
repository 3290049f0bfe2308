"""WordPiece and SentencePiece tokenizers."""
