"""BERT's original example generator in plain Python lists, to compare the compiled one with.

Written from the description of google-research/bert (eedf571, `create_pretraining_data.py`, lines
given below). It shares no code with `data_pipeline`: draws come from an object with the methods
`random()`, `randint(a, b)` and `shuffle(list)` of `random.Random`. `PairDraws` and `MaskDraws` are
such objects that read the project's keyed streams, with Python integers and exact fractions.
"""

from fractions import Fraction

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def fold(key, word):
    return mix(mix((key + GOLDEN) % WORD) ^ (word + GOLDEN) % WORD)


def stream_key(seed, phase, epoch, purpose):
    key = 0
    for word in (seed, phase, epoch, purpose):
        key = fold(key, word % WORD)
    return key


class PairDraws:
    """Draws 0, 1, 2, … of a key."""

    def __init__(self, key):
        self.key, self.drawn = int(key), 0

    def bits(self):
        self.drawn += 1
        return mix((self.key + self.drawn * GOLDEN) % WORD)

    def random(self):
        return Fraction(self.bits() // 2, 2**63)

    def randint(self, a, b):
        return a + (self.bits() * (b - a + 1) >> 64)

    def shuffle(self, items):
        for i in range(len(items)):
            j = self.randint(i, len(items) - 1)
            items[i], items[j] = items[j], items[i]


class MaskDraws(PairDraws):
    """Shuffles with one stream of a key, draws everything else from a second."""

    def __init__(self, key):
        super().__init__(fold(int(key), 1))
        self.shuffle = PairDraws(fold(int(key), 0)).shuffle


def create_pairs(documents, index, max_seq_length, short_seq_prob, rng, swap=False):
    """(tokens of A, tokens of B, is_random_next) of one document (lines 223-339).

    swap: ALBERT's sentence order (google-research/albert at b772393, same file, lines 314-343): as
    with its `random_next_sentence` off.
    """
    document = documents[index]
    max_num_tokens = max_seq_length - 3
    target = max_num_tokens
    if rng.random() < short_seq_prob:
        target = rng.randint(2, max_num_tokens)
    pairs = []
    chunk, length = [], 0
    i = 0
    while i < len(document):
        chunk.append(document[i])
        length += len(document[i])
        if i == len(document) - 1 or length >= target:
            a_end = 1
            if len(chunk) >= 2:
                a_end = rng.randint(1, len(chunk) - 1)
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b = []
            is_random = False
            if len(chunk) == 1 or (not swap and rng.random() < 0.5):
                is_random = True
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            elif swap and rng.random() < 0.5:
                is_random = True
                for sentence in chunk[a_end:]:
                    b.extend(sentence)
                a, b = b, a
            else:
                for sentence in chunk[a_end:]:
                    b.extend(sentence)
            pairs.append((*truncate(a, b, max_num_tokens, rng), is_random))
            chunk, length = [], 0
        i += 1
    return pairs


def truncate(a, b, max_num_tokens, rng):
    """Lines 418-433, with ends counted up instead of lists popped (a sentence may be long)."""
    ends = {"a": [0, len(a)], "b": [0, len(b)]}
    while True:
        a_length, b_length = (end - start for start, end in ends.values())
        if a_length + b_length <= max_num_tokens:
            return a[slice(*ends["a"])], b[slice(*ends["b"])]
        longer = ends["a" if a_length > b_length else "b"]
        if rng.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1


def add_special(a, b, cls, sep):
    """(ids, segment ids) of a pair (lines 302-319)."""
    return [cls, *a, sep, *b, sep], [0] * (len(a) + 2) + [1] * (len(b) + 1)


def mask(ids, cls, sep, mask_id, vocab_size, max_predictions, rng, rate=0.15):
    """(masked ids, positions, labels) without whole words (lines 342-415)."""
    candidates = [position for position, token in enumerate(ids) if token not in (cls, sep)]
    rng.shuffle(candidates)
    output = list(ids)
    wanted = min(max_predictions, max(1, round(len(ids) * rate)))
    chosen = []
    for position in candidates:
        if len(chosen) >= wanted:
            break
        if rng.random() < 0.8:
            replacement = mask_id
        elif rng.random() < 0.5:
            replacement = ids[position]
        else:
            replacement = rng.randint(0, vocab_size - 1)
        output[position] = replacement
        chosen.append((position, ids[position]))
    chosen.sort()
    return output, [position for position, _ in chosen], [label for _, label in chosen]
