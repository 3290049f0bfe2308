"""Examples masked by the compiled loops: alone in a row, or several to a row."""

import dataclasses

import numpy as np

from bert_jax.data_pipeline.assemble import Assembler
from bert_jax.data_pipeline.plan.plan import Plan
from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


def make_rows(
    rows, spec, key, *, vocab_size, word_starts, token_counts=None, row_tokens=None, pairs=False
):
    """The batch of these rows of examples of segments of ids; examples are numbered in order.

    With span masking the batch has the arrays of span boundaries.
    """
    spec = dataclasses.replace(spec, span_boundary=spec.masking == "span")
    examples = [example for row in rows for example in row]
    pieces = [(ids, 2 * n) for example in examples for n, ids in enumerate(example)]
    lengths = np.array([len(ids) for ids, _ in pieces], np.int32)
    plan = Plan(
        piece_start=np.cumsum([0, *lengths])[:-1],
        piece_length=lengths,
        piece_segment=np.array([segment for _, segment in pieces], np.int8),
        example_pieces=np.cumsum([0, *map(len, examples)]),
        example_label=np.zeros(len(examples), np.int8),
        example_source=np.zeros(len(examples), np.uint16),
        row_examples=np.cumsum([0, *map(len, rows)]),
        row_example=np.arange(len(examples)),
    )
    widest = max(sum(1 + sum(len(s) + 1 for s in example) for example in row) for row in rows)
    most = max(map(len, rows))
    assembler = Assembler(
        np.array([i for ids, _ in pieces for i in ids], np.uint16), SPECIAL, vocab_size, spec,
        row_tokens or widest, spec.max_predictions * most, most, pairs=pairs,
        word_starts=word_starts, token_counts=token_counts,
    )  # fmt: skip
    out = assembler.empty(len(rows))
    lines = np.arange(len(rows))
    assembler.fill(out, lines, plan, lines, np.uint64(key))
    return out.by_name()


def make_example(segments, spec, key, **vocabulary):
    """(ids, positions, labels, boundaries) of one example; its number is 0."""
    batch = make_rows([[segments]], spec, key, **vocabulary)
    row = {name: values[0] for name, values in batch.items()}
    count = int(row["masked_weights"].sum())
    assert (row["masked_weights"][:count] == 1).all()
    for name in ("masked_positions", "masked_labels", "masked_weights"):
        assert not row[name][count:].any()
    lines = None
    if spec.masking == "span":
        names = ("span_left", "span_right", "span_offsets", "span_weights")
        lines = list(zip(*(row[name][:count].tolist() for name in names), strict=True))
        assert not any(row[name][count:].any() for name in names)
    return (
        row["input_ids"].tolist(),
        row["masked_positions"][:count].tolist(),
        row["masked_labels"][:count].tolist(),
        lines,
    )
