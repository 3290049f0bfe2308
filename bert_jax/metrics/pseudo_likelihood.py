"""Scores of texts by a masked language model: which tokens are masked, and sums over them.

The pseudo-log-likelihood of a text is the sum of log p(token | all others) over its tokens, each
masked one at a time; the pseudo-perplexity of a corpus is exp(-sum / tokens) (Salazar et al. 2020,
"Masked Language Model Scoring", arXiv 1910.14659, sections 2 and 2.3). [CLS] and [SEP] are read and
not scored. A word of several tokens is then too easy, as the others give each of them away:
`word_l2r` also masks the tokens of its word that follow (Kauf and Ivanova 2023, "A Better Way to Do
Masked Language Model Scoring", arXiv 2305.10588, PLL-word-l2r).

Sizes: n tokens of a text, N texts or pairs.
"""

from typing import Final, Literal, get_args

import numpy as np

from bert_jax.metrics import spread

Method = Literal["token", "word_l2r"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)


def masked_until(words: np.ndarray, method: Method) -> np.ndarray:
    """Returns for each token the end of what is masked while it is scored, which begins with it:
    int64 [n].

    words: int64 [n], the number of the word of each token; does not decrease.
    """
    if method == "token":
        return np.arange(1, len(words) + 1)
    return np.searchsorted(words, words, side="right")


def perplexity(log_likelihoods: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    """Returns the mean of -log p over all tokens, whose exp is the pseudo-perplexity, and half the
    width of its 95 % interval, by Student's t over the texts; NaN of one text.

    Args:
        log_likelihoods: float64 [N], the sum over each text.
        tokens: int64 [N], the tokens of each text, positive.
    """
    mean = -float(log_likelihoods.sum()) / float(tokens.sum())
    return mean, spread.margin(-log_likelihoods, tokens.astype(np.float64))


def preferences(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Returns 1 for each pair whose good sentence has the higher score, 1/2 for a tie, else 0:
    float64 [N]; good, bad: float64 [N]."""
    return (np.sign(good - bad) + 1) / 2
