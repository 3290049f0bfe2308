"""`whole_word` masking as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:342-415` with whole words): words in random order, each masked entirely
or not at all, until the token budget is used up; a word that would exceed it is skipped.

As in the original, a piece that does not begin a word joins the previous candidate even across a
[SEP] (a sentence cut in the middle of a word).
"""

from typing import Final

from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.random.counter_rng import below, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def find_words(scratch, count):
    """Fills `scratch.words` from `scratch.word_starts`; returns the number of words."""
    words = 0
    for k in range(count):
        scratch.words[words] = k
        words += scratch.word_starts[k] != 0
    scratch.words[words] = count
    return words


@compiled
def start_words_at_segments(scratch, count):
    """Makes the first token of each segment begin a word too."""
    for k in range(count):
        scratch.word_starts[k] |= scratch.segment_starts[k]


@compiled
def select_words(key, rule, scratch, count, wanted):
    """Selects whole words of at most `wanted` tokens in total."""
    key = fold_key(key, 0)
    words, order, number = scratch.words, scratch.order, find_words(scratch, count)
    for word in range(number):
        order[word] = word
    taken = 0
    for turn in range(number):
        if taken == wanted:
            break
        other = turn + below(draw(key, turn), number - turn)
        word = order[other]
        order[other] = order[turn]
        if taken + words[word + 1] - words[word] > wanted:
            continue
        for k in range(words[word], words[word + 1]):
            scratch.marked[k] = 1
            scratch.chosen[taken] = k
            taken += 1
    return taken


MODE: Final = Mode(select_words, needs_words=True)
