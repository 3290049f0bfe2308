"""BERT's next-sentence prediction: whether the second segment follows the first."""

from bert_jax.objectives.sentence_pair import sentence_pair

NEXT_SENTENCE = sentence_pair(
    "nsp",
    "Next sentence (NSP)",
    task="whether the second segment follows the first in its document, or is a random one",
    head_title="next-sentence",
    card="The next-sentence head predicts 0 if the second text follows the first and 1 if it "
    "does not.",
)
