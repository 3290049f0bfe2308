"""The answers of a teacher for a student with another tokenizer, other windows or both.

A teacher's probabilities of first and last pieces belong to characters of the context. They are
over the pieces of the whole context, each with its logits in the window that shows it with most
context, and [CLS], "no answer here", with its smallest logits over the windows, as predictions
have it. In a window of the student a piece's probability goes to the token that holds its first
character, or its last one; those of pieces outside of the window go to [CLS], as the label of an
answer outside does. Tokens of the question, which no answer begins with, have none.

Sizes: E questions, M pieces of all contexts, m of one, n tokens of a window.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from bert_jax.finetune.tasks.qa import Window
from bert_jax.objectives.soft_labels import softmax


def of_pieces(windows: Sequence[Window], logits: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns what a teacher says of all pieces of all contexts.

    Args:
        windows: all windows of all questions, in order.
        logits: of each window, [n, 2]: of first and last tokens.

    Returns:
        "spans", int32 [M, 2], first character of each piece and the one after its last; "logits",
        float32 [M, 2]; "ends", int64 [E], the number of pieces up to the end of each question's;
        "none", float32 [E, 2], the logits of [CLS].
    """
    spans, values, ends, none = [np.empty((0, 2), np.int32)], [np.empty((0, 2), "f")], [], []
    pairs = zip(windows, logits, strict=True)
    total = 0
    for _, own in groupby(pairs, key=lambda pair: pair[0].example):
        first = []
        for window, found in own:
            part = found[window.first : window.first + len(window.spans)]
            spans.append(window.spans[window.central])
            values.append(part[window.central])
            total += int(window.central.sum())
            first.append(found[0])
        ends.append(total)
        none.append(min(first, key=lambda scores: float(scores.sum())))
    return {
        "spans": np.concatenate(spans).astype(np.int32),
        "logits": np.concatenate(values).astype(np.float32),
        "ends": np.array(ends, np.int64),
        "none": np.array(none, np.float32).reshape(-1, 2),
    }


def on_tokens(
    outputs: Mapping[str, np.ndarray], windows: Sequence[Window], temperature: float
) -> np.ndarray:
    """Returns the probabilities of first and last tokens of a student's windows after one another,
    float32 [tokens, 2]; those of a window add up to 1.

    outputs: of `of_pieces`.
    """
    starts = [0, *outputs["ends"].tolist()]
    parts = []
    for example, own in groupby(windows, key=lambda window: window.example):
        pieces = slice(starts[example], starts[example + 1])
        spans, logits = outputs["spans"][pieces], outputs["logits"][pieces]
        shares = softmax(np.vstack([outputs["none"][example], logits]).T, temperature).T[1:]
        parts += [_in_window(window, spans, shares) for window in own]
    return np.concatenate(parts).astype(np.float32)


def _in_window(window: Window, spans: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns the probabilities of the tokens of a window, float64 [n, 2].

    Args:
        spans: of the teacher's pieces, [m, 2].
        shares: their probabilities, [m, 2], as first and as last ones.
    """
    out = np.zeros((len(window.token_ids), 2))
    if len(window.spans):
        begins, ends = spans.T
        # The first and the last token that share a character with a piece.
        first = np.searchsorted(window.spans[:, 1], begins, side="right")
        last = np.searchsorted(window.spans[:, 0], np.maximum(ends, begins + 1), side="left") - 1
        inside = first <= last
        for column, tokens in enumerate((first, last)):
            np.add.at(out[:, column], window.first + tokens[inside], shares[inside, column])
    out[0] = 1 - out.sum(0)
    return out.clip(0)
