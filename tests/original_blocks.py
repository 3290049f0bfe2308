"""RoBERTa's and SpanBERT's blocks of sentences in plain Python lists, to compare with.

Written from the descriptions of fairseq's break modes "complete" and "complete_doc" and of
SpanBERT's dataset, with the decisions that `data_pipeline.pairing.blocks` names. It shares no code
with `data_pipeline`. A block is a list of (document, token) in reading order.
"""

import itertools


def size(block):
    """Tokens of a block and the [SEP]s between its documents."""
    changes = sum(1 for (a, _), (b, _) in itertools.pairwise(block) if a != b)
    return len(block) + changes


def target_of(rng, most, short_seq_prob):
    return rng.randint(2, most) if rng.random() < short_seq_prob else most


def full_sentences(documents, order, seq_length, short_seq_prob, rng_of_block):
    """Blocks over the documents of `order`; `rng_of_block(n)` draws for block number n."""
    most = seq_length - 2
    blocks, block, target, targets = [], [], most, 0

    def next_target():
        nonlocal target, targets
        target = target_of(rng_of_block(targets), most, short_seq_prob)
        targets += 1

    for number in order:
        for sentence in documents[number]:
            words = [(number, token) for token in sentence]
            if block and size(block + words) > target:
                blocks.append(block)
                block = []
            if not block:
                next_target()
            block = block + words
            while len(words) > most:
                blocks.append(words[:most])
                block = words = words[most:]
                next_target()
    return [*blocks, block] if block else blocks


def document_blocks(number, document, seq_length, short_seq_prob, rng, drop):
    """Blocks of one document; `drop`: without the sentences that are too long (SpanBERT)."""
    most = seq_length - 2
    target = target_of(rng, most, short_seq_prob)
    units = []  # what stays together: sentences, or None where one is dropped, and full blocks
    for sentence in document:
        words = [(number, token) for token in sentence]
        if drop and len(words) > most:
            units.append(None)
            continue
        while len(words) > most:
            units += [None, words[:most], None]
            words = words[most:]
        units.append(words)
    blocks = [[]]
    for unit in units:
        if unit is None:
            blocks.append([])
        elif blocks[-1] and len(blocks[-1]) + len(unit) > target:
            blocks.append(unit)
        else:
            blocks[-1] = blocks[-1] + unit
    return [block for block in blocks if block]
