"""RoBERTa's and SpanBERT's blocks of sentences in plain Python lists, to compare with.

Written from the descriptions of fairseq's break modes "complete" and "complete_doc" and of
SpanBERT's dataset, with the decisions that `data_pipeline/pairing/blocks.py` names. It shares no
code with `data_pipeline`. A block is a list of (document, token) in reading order; one of fairseq's
lines is a list of tokens and [SEP].
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


SEP = "[SEP]"


def lines_of(documents):
    """`fairseq-preprocess` of a file of sentences: [SEP] ends every line, empty ones too."""
    lines = []
    for number, document in enumerate(documents):
        lines += [[SEP]] if number else []
        lines += [[*sentence, SEP] for sentence in document]
    return lines


def cut(lines, block_size):
    """Lines too long for a block, as blocks of their own and a rest (fairseq keeps them whole)."""
    for line in lines:
        while len(line) > block_size:
            yield [*line[: block_size - 1], SEP]
            line = line[block_size - 1 :]
        yield line


def complete(lines, block_size):
    """Break mode "complete": lines while they fit, and one in any case."""
    blocks, block = [], []
    for line in cut(lines, block_size):
        if block and len(block) + len(line) > block_size:
            blocks.append(block)
            block = []
        block = block + line
    return [*blocks, block] if block else blocks


def complete_doc(lines, block_size):
    """Break mode "complete_doc": a line of one token ends the document and is left out."""
    blocks, block = [], []
    for line in cut(lines, block_size):
        end = len(line) == 1
        if block and (end or len(block) + len(line) > block_size):
            blocks.append(block)
            block = []
        if not end:
            block = block + line
    return [*blocks, block] if block else blocks
