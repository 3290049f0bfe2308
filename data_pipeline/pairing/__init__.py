"""Cut documents into examples: a function per kind of pairing, from lengths alone."""
