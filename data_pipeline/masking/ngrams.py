"""`ngram` masking as released with ALBERT (google-research/albert, `create_pretraining_data.py`,
`create_masked_lm_predictions` with whole words and shorter n-grams favoured): words in random
order, from each an n-gram of n words with P(n) proportional to 1/n; a shorter one if that exceeds
the budget; none if one of its words is already masked.

One difference: here an n-gram ends with its segment; ALBERT's may cross a [SEP]. As in ALBERT, the
shuffle and the lengths use separate random streams (there `random` and `numpy.random`).
"""

from bert_jax.data_pipeline.masking.replace import drawn
from bert_jax.data_pipeline.random.counter_rng import below, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def choose_ngrams(
    key, length_key, words, count, opens, wanted, length_limits, order, marked, chosen
):
    """Selects n-grams of at most `wanted` tokens in total; returns the number of tokens.

    opens: uint8, by token: 2 = begins a segment and a word, 1 = begins a word. length_limits: see
    `Rule`. Other arguments as in `choose_words`.
    """
    for word in range(count):
        order[word] = word
    taken = 0
    for turn in range(count):
        if taken == wanted:
            break
        other = turn + below(draw(key, turn), count - turn)
        word = order[other]
        order[other] = order[turn]
        most = 1 + drawn(draw(length_key, turn), length_limits)
        stop = word + 1
        while stop < count and stop - word < most and opens[words[stop]] != 2:
            stop += 1
        while stop > word + 1 and taken + words[stop] - words[word] > wanted:
            stop -= 1
        if taken + words[stop] - words[word] > wanted:
            continue
        covered = False
        for other in range(word, stop):
            covered = covered or marked[words[other]] != 0
        if covered:
            continue
        for k in range(words[word], words[stop]):
            marked[k] = 1
            chosen[taken] = k
            taken += 1
    return taken
