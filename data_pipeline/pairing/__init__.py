"""Cuts documents into examples from lengths alone: pairs, or blocks of sentences."""
