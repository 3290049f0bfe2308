"""Words hidden in a few held-out sentences, guessed at the start and at each evaluation of a run.

The sentences depend on the store alone: runs of one store have the same, and so has a resumed run.
They are one more batch of the evaluation. All processes compute it, as the parameters are on the
devices of all; process 0 writes.

Sizes: N sentences, B rows of a batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.analysis.hidden_words import guess_text, mask_words
from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.metrics.fill_records import Guesses
from bert_jax.parallel import global_batch
from bert_jax.training.evaluation_pass import EvaluationPass
from bert_jax.training.fill_step import FILLS
from bert_jax.training.step import StepFunctions

_SHORTEST, _LONGEST = 8, 32  # tokens of a sentence: enough to guess from, and a line of a page


class HeldOutFills:
    """Held-out sentences with a hidden word.

    Attributes:
        sentences: as they were drawn; fewer than asked for if the held-out text has no more.
    """

    def __init__(self, config: Config, store: TokenStore):
        """Draws `config.evaluation.fills` sentences that fit a row of each phase."""
        room = min(phase.seq_length for phase in config.phases) - 2  # [CLS] and [SEP]
        longest = min(_LONGEST, room)
        count, shortest = config.evaluation.fills, min(_SHORTEST, longest)
        self.sentences = mask_words(store, seed=0, count=count, shortest=shortest, longest=longest)
        self._tokenizer = Tokenizer.load(store.tokenizer_path)

    def guesses(
        self,
        held_out: EvaluationPass,
        program: StepFunctions,
        params: Any,
        compiled: Callable[..., Any] | None = None,
    ) -> Guesses:
        """Returns what the parameters guess for the hidden words; all processes call it.

        Args:
            held_out, program: of the phase.
            compiled: the evaluation step, if it was compiled ahead of time.
        """
        step, size = compiled or program.evaluate, held_out.batch_size
        local = []
        for first in range(0, len(self.sentences), size):
            make = functools.partial(self._rows, held_out.no_rows(), first)
            batch = global_batch.global_batch(make, program.rows, size)
            local.append(jax.tree.map(global_batch.local_values, step(params, batch)[FILLS]))
        parts = jax.tree.map(lambda *batches: np.stack(batches), *local)
        of_rows = global_batch.gather_batches(parts, program.rows, size)
        probabilities, ids = (x.reshape(-1, x.shape[-1]).tolist() for x in of_rows)
        return [
            [
                (guess_text(self._tokenizer, entry), round(probability, 4))
                for probability, entry in zip(*pair, strict=True)
            ]
            for _, *pair in zip(self.sentences, probabilities, ids, strict=False)
        ]

    def _rows(self, like: Batch, first: int, rows: np.ndarray) -> Batch:
        """Returns rows of a batch, the sentences from `first` on and after them padding; like: a
        batch without rows."""
        special = self._tokenizer.special
        made = {name: np.zeros((len(rows), *x.shape[1:]), x.dtype) for name, x in like.items()}
        made["input_ids"][...] = special.pad
        for line, row in enumerate(rows):
            if first + row >= len(self.sentences):
                continue
            sentence = self.sentences[first + row]
            own = slice(len(sentence.ids) + 2)
            made["input_ids"][line, own] = [special.cls, *sentence.ids, special.sep]
            made["example_ids"][line, own] = 1
            made["position_ids"][line, own] = np.arange(len(sentence.ids) + 2)
            made["masked_positions"][line, 0] = 1 + sentence.place
            made["masked_weights"][line, 0] = 1.0
        return made
