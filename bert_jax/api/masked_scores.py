"""Scores texts by a masked language model: each token masked once, in batches.

Sizes: B rows, S positions, n tokens of a text, T texts.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import jax
import numpy as np
from flax import nnx

from bert_jax.api import compiled
from bert_jax.api.corpus_search import watched
from bert_jax.api.text_rows import Rows
from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import ComputeConfig
from bert_jax.convert import weights
from bert_jax.convert.sources import ReadModel, read_model
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.minimal_pairs import Sentence
from bert_jax.finetune.tasks.rows import wrong_row
from bert_jax.metrics.pseudo_likelihood import Method, masked_until
from bert_jax.objectives.disentangled_embeddings import GENERATOR
from bert_jax.objectives.known_objectives import head_title
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.pretraining_model import declare, part_of
from bert_jax.objectives.replaced_token_model import generator_params
from bert_jax.parallel.local_devices import power_of_two, replicate, shard_rows

_SHORTEST: Final = (
    16  # tokens of a row; longer ones have a power of two, so few shapes are compiled
)
_CPU_TOKENS, _TOKENS = 1024, 16_384  # of a batch on each device; a CPU's caches then hold a layer
_AHEAD: Final = 2  # batches that the devices compute while the next is made


class ScoredText(NamedTuple):
    """A text as the model reads it between [CLS] and [SEP].

    Attributes:
        ids: uint32 [n].
        words: int64 [n], the number of the word of each token.
    """

    ids: np.ndarray
    words: np.ndarray


class _Batch(NamedTuple):
    """Rows of which one token each is scored; `texts` of a row past the end is -1."""

    rows: Rows
    positions: np.ndarray  # int32 [B]
    labels: np.ndarray  # int32 [B]

    @property
    def texts(self) -> np.ndarray:
        return self.rows.texts[:, 0]


def read_masked_model(source: str) -> ReadModel:
    """Reads a model to score texts with; of a run with a generator that, as it predicts masked
    tokens. Errors as `read_model`."""
    model = read_model(source)
    if GENERATOR not in model.params:
        return model
    params, config = generator_params(model.params), generator_of(model.config)
    return replace(model, source=f"{source}, its generator", params=params, config=config)


def check_masked_head(model: ReadModel) -> None:
    """Raises UserError for a model that predicts no masked tokens."""
    if MASKED_LM.head not in weights.groups_in(model.params):
        title = head_title(MASKED_LM.head)
        raise UserError(
            f"{model.source}: no {title}, so it predicts no masked tokens; give a model that was "
            f"saved with its {title}"
        )


class Scorer:
    """Scores texts with a model, in float32 on all local devices."""

    def __init__(self, model: ReadModel):
        """Raises UserError as `check_masked_head`."""
        check_masked_head(model)
        graph, declared = declare(model.config, ComputeConfig.plain(), (MASKED_LM.name,))
        self._params = replicate(part_of(model.params, nnx.to_pure_dict(declared)))
        self._log_probabilities = jax.jit(partial(compiled.log_probabilities, graph))
        self._model = model

    def read(self, sentences: Sequence[Sentence]) -> list[ScoredText]:
        """Returns the tokens of each text, as `AutoTokenizer` makes them.

        Raises:
            UserError: a text has no token or a special one, or is too long for the model.
        """
        tokenizer, room = self._model.tokenizer, self._model.config.max_position_embeddings - 2
        special = {*tokenizer.special} - {tokenizer.special.unk}
        encoded = tokenizer.encode_words([one.text for one in sentences])
        for one, (ids, _) in zip(sentences, encoded, strict=True):
            if not len(ids):
                wrong_row(one.path, one.row, f"{one.text[:60]!r} has no token; leave it out")
            if len(ids) > room:
                wrong_row(
                    one.path, one.row,
                    f"{len(ids):,} tokens, but the model reads {room:,}; split the text",
                )  # fmt: skip
            if found := special.intersection(ids.tolist()):
                token = tokenizer.token(min(found))
                wrong_row(one.path, one.row, f"{token} is a special token; leave it out")
        return [ScoredText(*one) for one in encoded]

    def unknown(self, texts: Sequence[ScoredText]) -> int:
        """Returns how many tokens of the texts are [UNK]."""
        return sum(int((one.ids == self._model.tokenizer.special.unk).sum()) for one in texts)

    def log_likelihoods(self, texts: Sequence[ScoredText], method: Method = "token") -> np.ndarray:
        """Returns the pseudo-log-likelihood of each text, float64 [T], in nats; texts with the same
        tokens are scored once. Shows the progress.

        Raises:
            UserError: the model's outputs are not finite.
        """
        by_tokens = {(text.ids.tobytes(), text.words.tobytes()): text for text in texts}
        places = {key: place for place, key in enumerate(by_tokens)}
        distinct = [*by_tokens.values()]
        sums, finished = np.zeros(len(distinct)), 0
        running = deque[tuple[_Batch, jax.Array]]()
        total = sum(len(text.ids) for text in distinct)
        with watched("tokens", total) as done:

            def finish() -> None:
                nonlocal finished
                batch, found = running.popleft()
                used = batch.texts >= 0
                np.add.at(sums, batch.texts[used], np.asarray(found)[used].astype(np.float64))
                finished += int(used.sum())
                done(finished)

            for batch in self._batches(distinct, method):
                arrays = shard_rows((batch.rows, batch.positions, batch.labels))
                running.append((batch, self._log_probabilities(self._params, *arrays)))
                if len(running) > _AHEAD:
                    finish()
            while running:
                finish()
        if not np.isfinite(sums).all():
            raise UserError(
                f"{self._model.source}: outputs NaN or infinite values; export an earlier step"
            )
        return sums[[places[text.ids.tobytes(), text.words.tobytes()] for text in texts]]

    def _batches(self, texts: Sequence[ScoredText], method: Method) -> Iterator[_Batch]:
        """Yields rows of one token each, in batches of one shape for each length."""
        longest, devices = self._model.config.max_position_embeddings, jax.local_device_count()
        tokens = _CPU_TOKENS if jax.default_backend() == "cpu" else _TOKENS
        sizes = np.array([len(text.ids) for text in texts], np.int64)
        powers = [max(power_of_two(size + 2), _SHORTEST) for size in sizes.tolist()]
        lengths = np.minimum(powers, longest)
        for length in np.unique(lengths).tolist():
            rows = max(1, tokens // length) * devices
            own = np.flatnonzero(lengths == length)
            of_text = np.repeat(own, sizes[own])
            of_token = np.concatenate([np.arange(size) for size in sizes[own]])
            ends = np.concatenate([masked_until(texts[i].words, method) for i in own.tolist()])
            for start in range(0, len(of_text), rows):
                made = _empty(rows, length, self._model.tokenizer.special.pad)
                part = slice(start, start + rows)
                places = (of_text[part].tolist(), of_token[part].tolist(), ends[part].tolist())
                members = zip(*places, strict=True)
                for row, (number, token, end) in enumerate(members):
                    self._fill(made, row, number, texts[number], slice(token, end))
                yield made

    def _fill(self, batch: _Batch, row: int, number: int, text: ScoredText, masked: slice) -> None:
        """Writes a text into a row; masked: its tokens that are, the first of which is scored."""
        special, size = self._model.tokenizer.special, len(text.ids) + 2
        ids = np.array([special.cls, *text.ids, special.sep], np.int32)
        ids[masked.start + 1 : masked.stop + 1] = special.mask
        batch.rows.ids[row, :size], batch.rows.examples[row, :size] = ids, 1
        batch.rows.positions[row, :size] = np.arange(size)
        batch.rows.texts[row] = number
        batch.positions[row], batch.labels[row] = masked.start + 1, text.ids[masked.start]


def _empty(rows: int, length: int, pad: int) -> _Batch:
    shape = (rows, length)
    return _Batch(
        Rows(
            ids=np.full(shape, pad, np.int32),
            examples=np.zeros(shape, np.int32),
            positions=np.zeros(shape, np.int32),
            starts=np.zeros((rows, 1), np.int32),
            texts=np.full((rows, 1), -1, np.int64),
        ),
        positions=np.zeros(rows, np.int32),
        labels=np.zeros(rows, np.int32),
    )
