"""ALBERT's sentence-order prediction: whether two segments are in order."""

from bert_jax.objectives.sentence_pair import sentence_pair

SENTENCE_ORDER = sentence_pair(
    "sop",
    "Sentence order (SOP)",
    task="whether two segments of a document are in order, or swapped",
    head_title="sentence-order",
    # transformers calls the head next-sentence prediction for any pair objective.
    card="The head that transformers calls `seq_relationship` predicts 0 if two texts are in "
    "order and 1 if they are swapped, or the second comes from elsewhere.",
)
