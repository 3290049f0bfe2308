"""All kinds of masking but BERT's of tokens in plain Python lists, to compare with.

Written from the descriptions of google-research/bert, google-research/albert (both
`create_pretraining_data.py`), SpanBERT (`pretraining/fairseq/data/masking.py`), fairseq
(`data/mask_tokens_dataset.py`), DistilBERT (`distiller.py`) and ELECTRA (`pretrain_helpers.py`).
They share no code with `data_pipeline`. Draws come from objects with the methods of
`random.Random`, and `pick`: an index by weight. An example is a list of segments, each a list of
ids, with [CLS] before the first and [SEP] after each.
"""

import itertools
import math
from fractions import Fraction

import original_generator as original


class Draws(original.PairDraws):
    def pick(self, weights):
        """An index with probability weights[index] / sum(weights)."""
        at, so_far = self.random() * sum(map(Fraction, weights)), Fraction(0)
        for index, weight in enumerate(weights):
            so_far += Fraction(weight)
            if at < so_far:
                return index
        raise AssertionError


class Streams:
    """The streams of one example's key: what is chosen, what replaces it, lengths of n-grams, how
    RoBERTa's number is rounded."""

    def __init__(self, key):
        streams = [Draws(original.fold(key, n)) for n in range(4)]
        self.choose, self.replace, self.lengths, self.rounding = streams


def lay_out(segments, cls, sep):
    """(ids with specials, positions of each segment's tokens)."""
    ids, places = [cls], []
    for segment in segments:
        places.append(list(range(len(ids), len(ids) + len(segment))))
        ids += [*segment, sep]
    return ids, places


def random_id(rng, vocab_size, counts):
    return rng.randint(0, vocab_size - 1) if counts is None else rng.pick(counts)


def replace_each(ids, chosen, rng, mask_id, vocab_size, counts, mask_share, random_share):
    """(ids, positions, labels) with the chosen positions replaced one by one, in their order."""
    output = list(ids)
    for position in chosen:
        if rng.random() < mask_share:
            output[position] = mask_id
        elif not rng.random() < 1 - random_share / (1 - mask_share):
            output[position] = random_id(rng, vocab_size, counts)
    positions = sorted(chosen)
    return output, positions, [ids[position] for position in positions]


def whole_words(segments, starts, most, rate, rng):
    """Chosen positions, in the order of choice."""
    ids, places = lay_out(segments, None, None)
    candidates = []
    for position in itertools.chain(*places):
        if candidates and not starts[ids[position]]:
            candidates[-1].append(position)
        else:
            candidates.append([position])
    rng.choose.shuffle(candidates)
    wanted = min(most, max(1, round(len(ids) * rate)))
    chosen = []
    for word in candidates:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(word) > wanted:
            continue
        chosen += word
    return chosen


def roberta(
    segments, cls, sep, most, rate, rng, mask_id, vocab_size, counts, not_drawn, mask_share,
    random_share,
):  # fmt: skip
    """(ids, positions, labels) with positions of all kinds chosen, specials among them.

    not_drawn: the first `nspecial` entries of fairseq's dictionary, which has <mask> at its end.
    """
    ids, _ = lay_out(segments, cls, sep)
    number = min(most, int(Fraction(rate * len(ids)) + rng.rounding.random()))
    order = list(range(len(ids)))
    rng.choose.shuffle(order)
    weights = [1] * vocab_size if counts is None else list(counts)
    for special in not_drawn:
        weights[special] = 0
    return replace_each(
        ids, order[:number], rng.replace, mask_id, vocab_size, weights, mask_share, random_share
    )


def by_frequency(segments, most, rate, rng, token_counts, specials, exponent=0.7):
    """Chosen positions, in the order of choice; of an example, where DistilBERT's are of a batch.

    Weights are whole multiples of 2**-44, so that the draws can be compared.
    """
    ids, places = lay_out(segments, None, None)
    left = {
        position: max(1, round(2**44 * max(token_counts[ids[position]], 1) ** -exponent))
        for position in itertools.chain(*places)
        if ids[position] not in specials
    }
    chosen = []
    while left and len(chosen) < min(most, math.ceil(rate * len(ids))):
        at = rng.choose.randint(0, sum(left.values()) - 1)
        ends = itertools.accumulate(left.values())
        chosen.append(next(p for p, end in zip(left, ends, strict=True) if at < end))
        del left[chosen[-1]]
    return chosen


def with_replacement(segments, most, rate, rng):
    """Chosen positions, in the order of choice; some several times."""
    ids, places = lay_out(segments, None, None)
    candidates = list(itertools.chain(*places))
    wanted = max(1, min(most, round(len(ids) * rate)))
    last = len(candidates) - 1
    return [candidates[rng.choose.randint(0, last)] for _ in range(min(wanted, len(candidates)))]


def replace_once(ids, chosen, rng, *how):
    """As `replace_each`, where a position chosen several times has as many slots."""
    output, _, _ = replace_each(ids, sorted(set(chosen)), rng, *how)
    return output, sorted(chosen), [ids[position] for position in sorted(chosen)]


def words_of(places, ids, starts):
    """The words of one segment, lists of positions."""
    words = []
    for position in places:
        if words and not starts[ids[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def ngrams(segments, starts, most, rate, rng, max_ngram=3):
    """Chosen positions, in the order of choice; and the numbers of words drawn."""
    ids, places = lay_out(segments, None, None)
    if rate == 0:
        return [], []
    wanted = min(most, max(1, round(len(ids) * rate)))
    pvals = [Fraction(1, n) for n in range(1, max_ngram + 1)]
    indexes = []
    for segment in places:
        words = words_of(segment, ids, starts)
        for first in range(len(words)):
            indexes.append([words[first : first + n] for n in range(1, max_ngram + 1)])
    rng.choose.shuffle(indexes)
    chosen, covered, drawn = [], set(), []
    for index_sets in indexes:
        if len(chosen) >= wanted:
            break
        n = rng.lengths.pick(pvals)
        drawn.append(n + 1)
        index_set = list(itertools.chain(*index_sets[n]))
        while len(chosen) + len(index_set) > wanted:
            if n == 0:
                break
            n -= 1
            index_set = list(itertools.chain(*index_sets[n]))
        if len(chosen) + len(index_set) > wanted:
            continue
        if any(index in covered for index in index_set):
            continue
        covered.update(index_set)
        chosen += index_set
    return chosen, drawn


def spans(segments, starts, most, rate, rng, success=0.2, longest=10, redraws=16):
    """Merged spans, as lists of positions; and the numbers of words drawn for them."""
    ids, places = lay_out(segments, None, None)
    tokens = [(position, segment) for segment in places for position in segment]
    weights = [Fraction(success) * (1 - Fraction(success)) ** n for n in range(longest)]
    wanted = min(most, math.ceil(len(tokens) * rate))
    mask, drawn = set(), []
    while len(mask) < wanted:
        length = 1 + rng.choose.pick(weights)
        anchor, segment = tokens[rng.choose.randint(0, len(tokens) - 1)]
        tries = 1
        while anchor in mask:
            if tries == redraws:  # the one departure: the same distribution, but it ends
                free = [token for token in tokens if token[0] not in mask]
                anchor, segment = free[rng.choose.randint(0, len(free) - 1)]
                break
            length = 1 + rng.choose.pick(weights)
            anchor, segment = tokens[rng.choose.randint(0, len(tokens) - 1)]
            tries += 1
        drawn.append(length)
        words = words_of(segment, ids, starts)
        (first,) = (number for number, word in enumerate(words) if anchor in word)
        for position in itertools.chain(*words[first : first + length]):
            if len(mask) < wanted:
                mask.add(position)
    merged = []
    for position in sorted(mask):
        if merged and merged[-1][-1] == position - 1:
            merged[-1].append(position)
        else:
            merged.append([position])
    return merged, drawn


def replace_spans(ids, merged, rng, mask_id, vocab_size, counts, mask_share, random_share):
    output = list(ids)
    for span in merged:
        at = rng.random()
        for position in span:
            if at < mask_share:
                output[position] = mask_id
            elif at < mask_share + random_share:
                output[position] = random_id(rng, vocab_size, counts)
    positions = [position for span in merged for position in span]
    return output, positions, [ids[position] for position in positions]


def boundaries(segments, merged, targets=15):
    """(left, right, offset, weight) of every masked token."""
    _, places = lay_out(segments, None, None)
    inside = set(itertools.chain(*places))
    lines = []
    for span in merged:
        left, right = span[0] - 1, span[-1] + 1
        for offset in range(len(span)):
            used = left in inside and right in inside and offset < targets
            lines.append((left, right, offset, 1.0) if used else (0, 0, 0, 0.0))
    return lines
