"""`whole_word` masking as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:342-415` with whole words): words in random order, each masked entirely
or not at all, until the token budget is used up; a word that would exceed it is skipped.

As in the original, a piece that does not begin a word joins the previous candidate even across a
[SEP] (a sentence cut in the middle of a word).
"""

from typing import Final

from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.masking.replace import cumulative_limits, drawn
from bert_jax.data_pipeline.random.counter_rng import below, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def start_words_at_segments(scratch, count):
    """Makes the first token of each segment begin a word too."""
    for k in range(count):
        scratch.word_starts[k] |= scratch.segment_starts[k]


@compiled
def _find_words(scratch, count):
    """Fills `scratch.words` from `scratch.word_starts`; returns the number of words."""
    words = 0
    for k in range(count):
        scratch.words[words] = k
        words += scratch.word_starts[k] != 0
    scratch.words[words] = count
    return words


@compiled
def select_words(key, rule, scratch, count, wanted):
    """Selects whole words of at most `wanted` tokens in total.

    From each word, in random order, as many words of its segment as drawn from `rule.limits`; fewer
    if they would exceed the budget; none if one of them is already selected.
    """
    length_key, key = fold_key(key, 2), fold_key(key, 0)
    words, order, number = scratch.words, scratch.order, _find_words(scratch, count)
    for word in range(number):
        order[word] = word
    taken = 0
    for turn in range(number):
        if taken == wanted:
            break
        other = turn + below(draw(key, turn), number - turn)
        word = order[other]
        order[other] = order[turn]
        most = 1 + drawn(draw(length_key, turn), rule.limits)
        stop = word + 1
        while stop < number and stop - word < most and not scratch.segment_starts[words[stop]]:
            stop += 1
        while stop > word + 1 and taken + words[stop] - words[word] > wanted:
            stop -= 1
        if taken + words[stop] - words[word] > wanted:
            continue
        covered = False
        for other in range(word, stop):
            covered = covered or scratch.marked[words[other]] != 0
        if covered:
            continue
        for k in range(words[word], words[stop]):
            scratch.marked[k] = 1
            scratch.chosen[taken] = k
            taken += 1
    return taken


MODE: Final = Mode(
    select_words,
    exact=False,  # a word that does not fit is passed over
    limits=lambda settings, budgets: cumulative_limits([1]),
    needs_words=True,
)
