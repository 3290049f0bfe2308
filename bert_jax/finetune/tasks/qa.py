"""Questions about a text as rows of tokens, and answers from logits.

As run_squad.py of google-research/bert: a text longer than a row is read in windows that begin
`stride` tokens apart; an answer counts in the window that shows it with most context. The answer is
the text's own characters, found by the offsets of its pieces, where the original aligns words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.labeled_examples import Question


@dataclass(frozen=True)
class Lengths:
    """In tokens; the defaults are those of run_squad.py.

    Attributes:
        row: of a window with [CLS], question, context and separators.
        stride: from the start of a window in the context to that of the next.
        question: longest, the rest is cut off.
    """

    row: int = 384
    stride: int = 128
    question: int = 64


@dataclass(frozen=True)
class Window:
    """A question with a part of its context: [CLS] question [SEP] part [SEP].

    Attributes:
        example: index of the question.
        token_ids, segment_ids: int32 [n]; the segments are the token types of the tokenizer.
        first: position of the part's first token.
        spans: int32 [m, 2], of the part's tokens: first character in the context, and the one after
            the last.
        central: bool [m], whether no other window shows the token with more context.
        target: positions of the answer's first and last token; (0, 0), at [CLS], where this window
            has none; None without labels, or if the answer has no token at all.
        question_cut: whether the question was too long.
    """

    example: int
    token_ids: np.ndarray
    segment_ids: np.ndarray
    first: int
    spans: np.ndarray
    central: np.ndarray
    target: tuple[int, int] | None
    question_cut: bool


@dataclass(frozen=True)
class Answer:
    """Characters `start` to `end` of a context.

    Attributes:
        score: sum of the logits of its first and last token.
        probability: softmax of the score over the best answers, "no answer" among them if allowed.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Answers:
    """The prediction for a question.

    Attributes:
        text: the prediction; "" if there is no answer.
        best: with different texts, the best first; empty where the context has no token.
        null_score: score of no answer minus that of the best one; inf where there is none. The
            prediction is "" where it is above the threshold.
    """

    text: str
    best: tuple[Answer, ...]
    null_score: float


def windows(
    questions: Sequence[Question], tokenizer: Tokenizer, lengths: Lengths | None = None
) -> list[Window]:
    """Returns the windows of each question, in order; each has at least one.

    Raises:
        UserError: rows are too short for a question.
    """
    lengths = lengths or Lengths()
    asked = tokenizer.encode_spans([question.question for question in questions])
    found = tokenizer.encode_spans([question.context for question in questions])
    labelled = any(question.answers or question.impossible for question in questions)
    out: list[Window] = []
    pieces = zip(questions, asked, found, strict=True)
    for number, (question, (asked_ids, _), (ids, spans)) in enumerate(pieces):
        kept = asked_ids[: lengths.question]
        head = np.concatenate([[tokenizer.special.cls], kept, tokenizer.frame.between])
        room = lengths.row - len(head) - 1
        if room < 1 or lengths.stride < 1:
            raise UserError(
                f"rows of {lengths.row} tokens, stride {lengths.stride}: no room for a context "
                f"after a question of {len(head)} tokens; raise config.phases[0].seq_length, or "
                "lower config.task.max_question"
            )
        answer = _answer_pieces(question, spans) if labelled else None
        parts = list(_parts(len(ids), room, lengths.stride))
        for (start, end), central in zip(parts, _central(parts), strict=True):
            out.append(
                Window(
                    example=number,
                    token_ids=np.concatenate(
                        [head, ids[start:end], [tokenizer.special.sep]]
                    ).astype(np.int32),
                    segment_ids=tokenizer.frame.types(len(kept), end - start),
                    first=len(head),
                    spans=spans[start:end],
                    central=central,
                    target=_target(answer, start, end, len(head)),
                    question_cut=len(asked_ids) > lengths.question,
                )
            )
    return out


def _parts(size: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yields first and end piece of each part of a context of `size` pieces."""
    start = 0
    while True:
        end = min(start + room, size)
        yield start, end
        if end == size:
            return
        start += min(end - start, stride)


def _central(parts: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Returns for each part which of its pieces no other part shows with more context.

    Context is the smaller number of pieces on either side, and, to break ties, 0.01 of the part's
    length; then the earlier part (`_check_is_max_context`).
    """
    size = parts[-1][1]
    best, owner = np.full(size, -np.inf), np.zeros(size, np.int32)
    for number, (start, end) in enumerate(parts):
        pieces = np.arange(start, end)
        score = np.minimum(pieces - start, end - 1 - pieces) + 0.01 * (end - start)
        better = score > best[start:end]
        best[start:end][better] = score[better]
        owner[start:end][better] = number
    return [owner[start:end] == number for number, (start, end) in enumerate(parts)]


def _answer_pieces(question: Question, spans: np.ndarray) -> tuple[int, int] | None:
    """Returns the first and last piece of the answer to learn; (-1, -1) for an impossible question,
    None without such an answer, or if no character of it is in a piece."""
    if not question.answers:
        return -1, -1
    if not question.located:
        return None
    text, start = question.located
    inside = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < start + len(text)))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def _target(
    answer: tuple[int, int] | None, start: int, end: int, first: int
) -> tuple[int, int] | None:
    """Returns the positions in a window of the context's pieces `start` to `end`."""
    if answer is None:
        return None
    if not start <= answer[0] <= answer[1] < end:
        return 0, 0
    return first + answer[0] - start, first + answer[1] - start


def predict(
    question: Question,
    windows: Sequence[Window],
    logits: Sequence[np.ndarray],
    *,
    no_answer: bool,
    n_best: int = 20,
    max_answer: int = 30,
    threshold: float = 0.0,
) -> Answers:
    """Returns the best answers to a question.

    Args:
        windows: all windows of this question.
        logits: of each window, [n, 2]: of the answer's first and last token.
        no_answer: whether "no answer" can be predicted, as in SQuAD 2.0. Its score is the smallest
            over the windows of the logits at [CLS].
        n_best: of the first and last tokens of each window, and of the answers. The original also
            counts tokens of the question among the first and last, and may be left with no answer.
        max_answer: longest answer, in tokens.
        threshold: above this `null_score` the prediction is "".
    """
    found = [
        (score, window, first, last)
        for window, values in zip(windows, logits, strict=True)
        for score, first, last in _spans(window, np.asarray(values, float), n_best, max_answer)
    ]
    found.sort(key=lambda one: -one[0])  # stable, so that ties keep the order of the windows
    best: dict[str, tuple[float, int, int]] = {}
    for score, window, first, last in found:
        start, end = int(window.spans[first, 0]), int(window.spans[last, 1])
        if len(best) < n_best:
            best.setdefault(question.context[start:end], (score, start, end))
    null = min(float(values[0].sum()) for values in logits)
    scores = [score for score, _, _ in best.values()]
    exponents = np.array([*scores, *([null] if no_answer else [])])
    weights = np.exp(exponents - exponents.max()) if len(exponents) else exponents
    shares = weights / weights.sum()
    answers = tuple(
        Answer(text, start, end, score, float(share))
        for (text, (score, start, end)), share in zip(best.items(), shares, strict=False)
    )
    null_score = null - answers[0].score if answers else np.inf
    refused = not answers or (no_answer and null_score > threshold)
    return Answers("" if refused else answers[0].text, answers, float(null_score))


def _spans(
    window: Window, logits: np.ndarray, n_best: int, max_answer: int
) -> Iterator[tuple[float, int, int]]:
    """Yields the scores of possible answers, and their first and last token in the part."""
    part = logits[window.first : window.first + len(window.spans)]
    starts, ends = np.argsort(-part, axis=0, kind="stable")[:n_best].T.tolist()
    for first in starts:
        for last in ends:
            if window.central[first] and first <= last < first + max_answer:
                yield float(part[first, 0] + part[last, 1]), first, last
