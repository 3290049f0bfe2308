"""ALBERT's sentence-order prediction: whether two segments are in order."""

from bert_jax.objectives.sentence_pair import sentence_pair

SENTENCE_ORDER = sentence_pair(
    "sop",
    "Sentence order (SOP)",
    head_title="sentence-order",
    # transformers calls it next-sentence prediction whatever it learned.
    card="The head that transformers calls `seq_relationship` says 0 where two texts are in "
    "order and 1 where they are swapped, or the second comes from elsewhere.",
)
