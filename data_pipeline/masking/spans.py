"""`span` masking as released with SpanBERT (`pretraining/fairseq/data/masking.py:80-150`): spans of
a geometric number of words, each from the start of the word that contains a random token, until the
token budget is used up, which may cut the last span within a word. Spans that overlap or touch
count as one when tokens are replaced and when spans are predicted from their boundaries.

A span ends with its segment; in SpanBERT every example is a single segment.
"""

from typing import Final

from bert_jax.data_pipeline.masking.replace import drawn
from bert_jax.data_pipeline.random.counter_rng import below, draw
from bert_jax.data_pipeline.random.numba_jit import compiled

# The original draws a length and an anchor until the anchor is unmasked. After this many rejections
# (one span in 10**13 at a rate of .15) the anchor is drawn from the unmasked tokens: the same
# distribution, but guaranteed to terminate.
REDRAWS: Final = 16


@compiled
def choose_spans(key, count, opens, wanted, length_limits, marked):
    """Marks exactly `wanted` ≤ `count` tokens, in spans.

    opens: uint8 [count], by token: 2 = begins a segment and a word, 1 = begins a word; the first
    token is 2. length_limits: see `Rule`. marked: uint8 [≥ count], initially zeros.
    """
    masked = n = rejected = 0
    while masked < wanted:
        most = 1 + drawn(draw(key, n), length_limits)
        k = below(draw(key, n + 1), count)
        n += 2
        if marked[k]:
            rejected += 1
            if rejected < REDRAWS:
                continue
            k = _unmarked(below(draw(key, n), count - masked), marked)
            n += 1
        rejected = 0
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
    """Returns the unmarked token with `rank` unmarked tokens before it."""
    k = 0
    while True:
        if not marked[k]:
            if rank == 0:
                return k
            rank -= 1
        k += 1
