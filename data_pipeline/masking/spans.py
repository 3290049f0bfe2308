"""`span` masking as released with SpanBERT (`pretraining/fairseq/data/masking.py:80-150`): spans of
a geometric number of words from the start of the word around a random token, until the budget of
tokens is used up, which may cut the last span within a word. Spans that overlap or touch count as
one when tokens are replaced and when the boundaries of spans are predicted.

Spans end with their segment; SpanBERT has no others, its examples being one block each.
"""

from typing import Final

from bert_jax.data_pipeline.masking.replace import drawn
from bert_jax.data_pipeline.random.counter_rng import below, draw
from bert_jax.data_pipeline.random.numba_jit import compiled

# The original draws a length and an anchor until the anchor is not masked yet. After so many in
# vain (one span in 10**13 at a rate of .15) the anchor is drawn from what is left, which is the
# same distribution and ends.
REDRAWS: Final = 16


@compiled
def choose_spans(key, count, opens, wanted, length_limits, marked):
    """Mark exactly `wanted` ≤ `count` tokens, in spans.

    opens: uint8 [count], by token: 2 = begins a segment and a word, 1 = begins a word, and the
    first token is 2. length_limits: see `Rule`. marked: uint8 [≥ count], zeros before.
    """
    masked = n = vain = 0
    while masked < wanted:
        most = 1 + drawn(draw(key, n), length_limits)
        k = below(draw(key, n + 1), count)
        n += 2
        if marked[k]:
            vain += 1
            if vain < REDRAWS:
                continue
            k = _unmarked(below(draw(key, n), count - masked), marked)
            n += 1
        vain = 0
        while opens[k] == 0:
            k -= 1
        words = 0
        while masked < wanted and words < most:
            masked += 1 - marked[k]
            marked[k] = 1
            k += 1
            while masked < wanted and k < count and opens[k] == 0:
                masked += 1 - marked[k]
                marked[k] = 1
                k += 1
            words += 1
            if k == count or opens[k] == 2:
                break


@compiled
def _unmarked(rank, marked):
    """The token that has `rank` unmarked ones before it."""
    k = 0
    while True:
        if not marked[k]:
            if rank == 0:
                return k
            rank -= 1
        k += 1
