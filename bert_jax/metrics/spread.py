"""Variation of a mean over held-out text with the choice of its documents.

A measure is a sum over predictions divided by their count, and the predictions of a document are
not independent: documents are the observations, weighted by their predictions.
"""

import math

import numpy as np


def effective_documents(counts: np.ndarray) -> float:
    """Returns how many documents of equal size tell as much as those of these counts: Kish 1965."""
    return float(counts.sum() ** 2 / (counts**2).sum())


def document_sd(sums: np.ndarray, counts: np.ndarray) -> float:
    """Returns the standard deviation of sums.sum() / counts.sum() from the choice of documents; NaN
    of one document.

    Args:
        sums: [D] of the predictions of each document. counts: [D] of them, positive.
    """
    if len(counts) < 2:
        return math.nan
    total = counts.sum()
    shares = counts / total
    residuals = (sums - sums.sum() / total * counts) / total
    # The squared residuals from the weighted mean keep this share of the documents' variance:
    # 1 - 1/D of D equal documents, less of unequal ones. Where documents have one variance, their
    # mean is that of w² · (1 - 2w + Σw²).
    squares = shares**2
    kept = (squares * (1 - 2 * shares + squares.sum())).sum() / squares.sum()
    return float(np.sqrt((residuals**2).sum() / kept))


def margin(sums: np.ndarray, counts: np.ndarray) -> float:
    """Returns half the width of the 95 % interval of sums.sum() / counts.sum(), by Student's t over
    the effective documents; NaN of fewer than two: t knows no limit near 0 degrees of freedom.

    Args: as `document_sd`; documents without predictions do not count.
    """
    from scipy import special  # scipy.stats, whose t.ppf this is, takes a second to import

    asked = counts > 0
    sums, counts = sums[asked], counts[asked]
    if not len(counts) or (documents := effective_documents(counts)) < 2:
        return math.nan
    return float(special.stdtrit(documents - 1, 0.975)) * document_sd(sums, counts)
