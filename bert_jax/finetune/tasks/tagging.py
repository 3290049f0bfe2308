"""Tagged sentences as rows of tokens, and tags from logits.

The label of a word is on its first piece; its other pieces have no loss. Words that do not fit into
a row are read in further windows, each of which repeats words before them as context: every word
gets a tag.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.labeled_examples import Words

_CONTEXT = 4  # a window repeats at most this part of a row: 1/4


@dataclass(frozen=True)
class Window:
    """A sentence or a part of it: [CLS] pieces [SEP].

    Attributes:
        example: index of the sentence.
        token_ids: int32 [n].
        words: int32 [w], indices in the sentence of the words that this window tags.
        positions: int32 [w], of their first pieces.
        labels: int32 [w]; None without labels.
        cut: how many of these words are longer than a row.
    """

    example: int
    token_ids: np.ndarray
    words: np.ndarray
    positions: np.ndarray
    labels: np.ndarray | None
    cut: int = 0


def windows(sentences: Sequence[Words], tokenizer: Tokenizer, row: int) -> list[Window]:
    """Returns the windows of each sentence, in order; every word is tagged by exactly one.

    The ids are those of `AutoTokenizer` with `is_split_into_words=True`. A word of which the
    tokenizer makes no piece, such as a zero-width space, is [UNK]; one that is longer than a row is
    cut.

    Args:
        tokenizer: of texts in words, see `Tokenizer.for_task`.
        row: longest window, in tokens.

    Raises:
        UserError: `row` has no place for a word.
    """
    if row < 3:
        raise UserError(f"rows of {row} tokens have no room for a word; give 3 or more")
    pieces = iter(tokenizer.encode_texts([word for one in sentences for word in one.words]))
    unknown = np.array([tokenizer.special.unk], np.uint32)
    out = []
    for number, sentence in enumerate(sentences):
        words = [found if len(found := next(pieces)) else unknown for _ in sentence.words]
        lost = [len(word) > row - 2 for word in words]
        words = [word[: row - 2] for word in words]
        for context, start, end in _parts([len(word) for word in words], row - 2):
            chosen = words[context:end]
            firsts = np.cumsum([1, *map(len, chosen[:-1])], dtype=np.int32)
            ends = [[tokenizer.special.cls], *chosen, [tokenizer.special.sep]]
            labels = None
            if sentence.labels is not None:
                labels = np.array(sentence.labels[start:end], np.int32)
            out.append(
                Window(
                    example=number,
                    token_ids=np.concatenate(ends).astype(np.int32),
                    words=np.arange(start, end, dtype=np.int32),
                    positions=firsts[start - context :],
                    labels=labels,
                    cut=sum(lost[start:end]),
                )
            )
    return out


def _parts(lengths: Sequence[int], room: int) -> Iterator[tuple[int, int, int]]:
    """Yields of each window the first word that it repeats, the first that it tags, and the end.

    lengths: pieces of each word, at most `room` each.
    """
    start = 0
    while start < len(lengths):
        context, filled = start, lengths[start]
        most = min(room - filled, room // _CONTEXT)
        while context > 0 and sum(lengths[context - 1 : start]) <= most:
            context -= 1
        filled += sum(lengths[context:start])
        end = start + 1
        while end < len(lengths) and filled + lengths[end] <= room:
            filled += lengths[end]
            end += 1
        yield context, start, end
        start = end


def token_labels(window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels, int32 [n], and weights, float32 [n], of a window's tokens."""
    labels, weights = np.zeros(len(window.token_ids), np.int32), np.zeros(len(window.token_ids))
    if window.labels is not None:
        labels[window.positions], weights[window.positions] = window.labels, 1
    return labels, weights.astype(np.float32)


def of_words(windows: Sequence[Window], logits: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the logits of all words, float32 [W, C], which the windows tag in their order.

    logits: of each window, [n, C].
    """
    pairs = zip(windows, logits, strict=True)
    return np.concatenate([values[window.positions] for window, values in pairs])


def on_tokens(windows: Sequence[Window], values: np.ndarray) -> np.ndarray:
    """Returns values of words, [W, C], on the first pieces of the words, zeros on all other tokens
    of the windows after one another: [tokens, C]."""
    lengths = [len(window.token_ids) for window in windows]
    starts = np.cumsum([0, *lengths])
    firsts = [start + one.positions for start, one in zip(starts, windows, strict=False)]
    out = np.zeros((starts[-1], values.shape[1]), values.dtype)
    out[np.concatenate(firsts)] = values
    return out


def predict(
    sentences: Sequence[Words], windows: Sequence[Window], logits: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the ids of the tags of each sentence, int32 [words].

    Args:
        windows: all windows of these sentences.
        logits: of each window, [n, C].
    """
    tags = [np.full(len(sentence.words), -1, np.int32) for sentence in sentences]
    for window, values in zip(windows, logits, strict=True):
        tags[window.example][window.words] = np.asarray(values)[window.positions].argmax(-1)
    missing = sum(int((one < 0).sum()) for one in tags)
    assert not missing, f"{missing} words are in no window"
    return tags
