"""Pairs without labels, from the sentences of a token store: for in-batch negatives.

A sentence is its own positive, told apart by the dropout masks of both (SimCSE, Gao et al. 2021,
arXiv 2104.08821), or its neighbor in the document is. The texts are those that the tokenizer of the
store decodes. Held-out pairs are neighbors in both cases: a sentence would always find itself.
"""

from collections.abc import Sequence
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
from bert_jax.finetune.tasks.sentence_pairs import SENTENCE_PAIRS, SentencePairs

_SHORTEST: Final = 4  # tokens of a sentence
_MOST_HELD_OUT: Final = 2_000  # pairs
_NEIGHBORS: Final = (0, 1)


class StoreTask(SentencePairs):
    """Sentences of a store, which are learned from without labels."""

    remedy = "build the store with more text"

    def check(self, config: Config) -> None:
        why = f"for {self.name}, whose texts and held-out texts are the store's; leave it out"
        check_unused(config.task, ("held_out", "text", "pair", "label"), why)

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        store = open_store(task.data)
        tokenizer, places = Tokenizer.load(store.tokenizer_path), self.places(task)
        train = self._read_split(store, store.train, tokenizer, places, task.most_pairs)
        held_out = self._read_split(store, store.held_out, tokenizer, _NEIGHBORS, _MOST_HELD_OUT)
        store.files.check()
        return train, held_out

    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        """Returns the pairs of a file."""
        return SENTENCE_PAIRS.read_new(task, source, split)

    def group(self, example: Example) -> None:
        """The store has decided what is held out."""
        return None

    def places(self, task: TaskConfig) -> tuple[int, ...]:
        """Returns how many sentences each text of an example is after the first, in one
        document."""
        raise NotImplementedError

    def _read_split(
        self,
        store: TokenStore,
        split: Split,
        tokenizer: Tokenizer,
        places: Sequence[int],
        most: int,
    ) -> Examples:
        """Returns examples evenly spread over a split if it has more than `most`; UserError if it
        has none."""
        lengths = np.asarray(split.sentence_lengths)
        ends = np.cumsum(lengths, dtype=np.int64)
        first, after = np.flatnonzero(lengths >= _SHORTEST), max(places)
        if after:
            lasts = np.cumsum(split.document_lengths, dtype=np.int64) - 1
            first = first[~np.isin(first, lasts)]
            first = first[lengths[first + after] >= _SHORTEST]
        if not len(first):
            what = "neighboring sentences" if after else "sentence"
            raise UserError(
                f"{store.path}: its {split.name} split has no {what} of {_SHORTEST} tokens or "
                "more; build it with more text"
            )
        chosen = first[np.linspace(0, len(first) - 1, min(most, len(first))).astype(np.int64)]

        def text(sentence: int) -> str:
            end = int(ends[sentence])
            return tokenizer.decode(split.tokens[end - int(lengths[sentence]) : end].tolist())

        examples = [
            Example(str(number), tuple(text(row + place) for place in places), None, row + 1)
            for number, row in enumerate(chosen.tolist())
        ]
        path = str(epath.Path(store.path) / split.name)
        return Examples(path, self.name, (), tuple(examples), {})


class StorePairs(StoreTask):
    """Sentences of a store, each with itself or with its neighbor."""

    name = "store_pairs"
    own_settings = (*SentencePairs.own_settings, "pairs", "most_pairs")

    def check(self, config: Config) -> None:
        super().check(config)
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

    def places(self, task: TaskConfig) -> tuple[int, ...]:
        return (0, 0) if task.pairs == "same" else _NEIGHBORS


STORE_PAIRS: Final = StorePairs()
