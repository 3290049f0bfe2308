"""`whole_word` masking as released with BERT (google-research/bert at eedf571,
`create_pretraining_data.py:342-415` with whole words): words in random order, each masked entirely
or not at all, until the token budget is used up; a word that would exceed it is skipped.

As in the original, a piece that does not begin a word joins the previous candidate even across a
[SEP] (a sentence cut in the middle of a word).
"""

from bert_jax.data_pipeline.random.counter_rng import below, draw
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def choose_words(key, words, count, wanted, order, marked, chosen):
    """Selects whole words of at most `wanted` tokens in total; returns the number of tokens.

    words: int32 [count + 1], the first token of each word and the end of the last. order: int32
    [≥ count], scratch. marked, chosen: as in `choose_tokens`.
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
        if taken + words[word + 1] - words[word] > wanted:
            continue
        for k in range(words[word], words[word + 1]):
            marked[k] = 1
            chosen[taken] = k
            taken += 1
    return taken
