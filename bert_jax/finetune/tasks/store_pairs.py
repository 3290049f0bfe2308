"""Pairs without labels, from the sentences of a token store: for in-batch negatives.

A sentence is its own positive, told apart by the dropout masks of both (SimCSE, Gao et al. 2021,
arXiv 2104.08821), or its neighbor in the document is. The texts are those that the tokenizer of the
store decodes. Held-out pairs are neighbors in both cases: a sentence would always find itself.
"""

from typing import Final

import numpy as np
from etils import epath

from bert_jax.config.schema import Config
from bert_jax.config.task_settings import TaskConfig, check_unused
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.sentence_pairs import SentencePairs

_SHORTEST: Final = 4  # tokens of a sentence
_MOST_HELD_OUT: Final = 2_000  # pairs


class StorePairs(SentencePairs):
    """Sentences of a store, each with itself or with its neighbor."""

    name = "store_pairs"
    own_settings = (*SentencePairs.own_settings, "pairs", "most_pairs")

    def check(self, config: Config) -> None:
        why = f"for {self.name}, whose texts and held-out texts are the store's; leave it out"
        check_unused(config.task, ("held_out", "text", "pair", "label"), why)
        if config.task.pairs == "same" and not config.init:
            raise UserError(
                "config.task.pairs=same teaches a pretrained model; random weights learn nothing "
                "from a sentence and itself: set config.init, or pairs=neighbors"
            )
        model = config.model
        if config.task.pairs == "same" and not (
            model.hidden_dropout_prob or model.attention_probs_dropout_prob
        ):
            raise UserError(
                "config.task.pairs=same needs dropout, which tells both vectors of a sentence "
                "apart; set --config.model.hidden_dropout_prob=0.1, or pairs=neighbors"
            )

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        store = open_store(task.data)
        tokenizer = Tokenizer.load(store.tokenizer_path)
        after = 0 if task.pairs == "same" else 1
        train = _pairs(store, store.train, tokenizer, after, task.most_pairs)
        held_out = _pairs(store, store.held_out, tokenizer, 1, _MOST_HELD_OUT)
        store.files.check()
        return train, held_out


def _pairs(
    store: TokenStore, split: Split, tokenizer: Tokenizer, after: int, most: int
) -> Examples:
    """Returns pairs of sentences, evenly spread over a split if it has more than `most`.

    Args:
        after: how many sentences the second of a pair is after the first, in one document.

    Raises:
        UserError: the split has none.
    """
    lengths = np.asarray(split.sentence_lengths)
    ends = np.cumsum(lengths, dtype=np.int64)
    first = np.flatnonzero(lengths >= _SHORTEST)
    if after:
        lasts = np.cumsum(split.document_lengths, dtype=np.int64) - 1
        first = first[~np.isin(first, lasts)]
        first = first[lengths[first + after] >= _SHORTEST]
    if not len(first):
        what = "neighboring sentences" if after else "sentence"
        raise UserError(
            f"{store.path}: its {split.name} split has no {what} of {_SHORTEST} tokens or more; "
            "build it with more text"
        )
    chosen = first[np.linspace(0, len(first) - 1, min(most, len(first))).astype(np.int64)]

    def text(sentence: int) -> str:
        end = int(ends[sentence])
        return tokenizer.decode(split.tokens[end - int(lengths[sentence]) : end].tolist())

    examples = [
        Example(str(number), (text(row), text(row + after)), None, row + 1)
        for number, row in enumerate(chosen.tolist())
    ]
    path = str(epath.Path(store.path) / split.name)
    return Examples(path, StorePairs.name, (), tuple(examples), {})


STORE_PAIRS: Final = StorePairs()
