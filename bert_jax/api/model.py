"""Inference with a pretrained model: `bert_jax.load(path)` returns a `Model`.

Dimensions: N texts, B batch, S sequence, H hidden, V vocabulary, P masks in a text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.reader import read_folder
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.finetune.predictor import Predictor, probabilities
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.registry import with_heads

Pooling = Literal["mean", "cls", "pooled"]
# Rows are padded to one of these lengths (or to the model's maximum), so few shapes are compiled.
_LENGTHS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Fill:
    """A predicted vocabulary entry for a mask; "##" marks the inside of a word (WordPiece), "▁"
    (SentencePiece) and "Ġ" (byte-level BPE) its start."""

    token: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The class of a text with its probability, or its score; the other is None."""

    label: str | None
    probability: float | None
    score: float | None = None


class _Rows(NamedTuple):
    """A padded batch."""

    texts: np.ndarray  # indices
    ids: np.ndarray  # [B, S]
    real: np.ndarray  # attention mask [B, S]


class Model:
    """A BERT encoder with its tokenizer; created by `load`.

    Texts are tokenized as by `AutoTokenizer`: [CLS] text [SEP], special tokens such as "[MASK]" are
    recognized in the text, long texts are truncated. Computes in float32.

    Attributes:
        config: the architecture.
        tokenizer: the vocabulary and its special ids.
    """

    def __init__(
        self, config: ModelConfig, params: Any, tokenizer: Tokenizer, groups: frozenset[str]
    ):
        """groups: the parts of `params`."""
        self.config, self.tokenizer, self._groups = config, tokenizer, groups
        self._params = jax.device_put(params)
        self._predictor: Predictor | None = None
        self._encoder = tokenizers.Tokenizer.from_str(tokenizer.json.decode())
        self._encoder.no_padding()
        self._encoder.no_truncation()
        heads, pooler = with_heads(groups), "pooler" in groups
        graph, _ = declare(config, ComputeConfig.plain(), heads, pooler=pooler)
        self._hidden = jax.jit(partial(_hidden, graph))
        self._vectors = jax.jit(partial(_vectors, graph), static_argnames="pooling")
        fills = partial(_fills, graph, entries=tokenizer.vocab_size)
        self._fills = jax.jit(fills, static_argnames="top_k")

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<Model: {config.num_hidden_layers} layers of {config.hidden_size}, "
            f"{config.vocab_size:,} entries, {config.max_position_embeddings} positions; "
            f"{', '.join(sorted(self._groups))}>"
        )

    def encode(
        self, texts: str | Sequence[str], *, pooling: Pooling = "mean", batch_size: int = 32
    ) -> np.ndarray:
        """Returns one vector per text, float32 [N, H]; a single text counts as a list of one.

        Args:
            pooling: "mean": the mean over all tokens, [CLS] and [SEP] included; "cls": the hidden
                state of [CLS]; "pooled": the output of the tanh pooler on [CLS], trained by
                a sentence-pair objective.
            batch_size: texts per batch.

        Raises:
            UserError: another pooling, or "pooled" if the folder has no pooler.
        """
        if pooling not in get_args(Pooling):
            raise UserError(f"pooling={pooling!r}; choose one of {', '.join(get_args(Pooling))}")
        if pooling == "pooled":
            self._need("pooler", "pooler", 'use pooling="mean" or "cls"')
        listed = _listed(texts)
        out = np.zeros((len(listed), self.config.hidden_size), np.float32)
        for rows in self._batches(listed, batch_size):
            vectors = self._vectors(self._params, rows.ids, rows.real, pooling=pooling)
            out[rows.texts] = _finite(vectors)[: len(rows.texts)]
        return out

    def hidden_states(
        self, texts: str | Sequence[str], *, batch_size: int = 32
    ) -> list[np.ndarray]:
        """Last hidden states of each text, float32 [tokens, H], with [CLS] and [SEP]."""
        listed = _listed(texts)
        out: list[np.ndarray] = [np.empty(0)] * len(listed)
        for rows in self._batches(listed, batch_size):
            hidden = _finite(self._hidden(self._params, rows.ids, rows.real))
            for row, text in enumerate(rows.texts):
                out[text] = hidden[row, : rows.real[row].sum()].copy()
        return out

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[Fill]]:
        """Returns the `top_k` most probable entries for each mask in the text, in order.

        A mask is written "[MASK]", or "<mask>" where the tokenizer is RoBERTa's.

        Several masks are predicted independently of each other, as in training.

        Raises:
            UserError: no [MASK] in the text, or one beyond the model's last position; or the folder
                has no masked-language-model head.
        """
        if _listed(text) != [text]:
            raise UserError("fill_mask takes one text, not a list; call it for each")
        head = "masked-language-model head"
        self._need(MASKED_LM.head, head, f"give a model that was saved with its {head}")
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise UserError(f"top_k={top_k}; give 1 to {self.tokenizer.vocab_size}")
        (tokens,) = self._tokens([text])
        limit = self.config.max_position_embeddings
        mask = self.tokenizer.token(self.tokenizer.special.mask)
        masks = [i for i, token in enumerate(tokens) if token == self.tokenizer.special.mask]
        if not masks:
            raise UserError(f"no {mask} in {_short(text)!r}; put one in place of a word")
        if len(tokens) > limit and masks[-1] >= limit - 1:
            raise UserError(
                f"{_short(text)!r} has {len(tokens)} tokens with a {mask} beyond the model's "
                f"{limit}; shorten it"
            )
        (rows,) = self._batches([text], 1)
        positions = np.zeros(_power_of_two(len(masks)), np.int32)
        positions[: len(masks)] = masks
        ids, probabilities = self._fills(self._params, rows.ids, rows.real, positions, top_k=top_k)
        return [
            [Fill(self.tokenizer.token(i), float(p)) for i, p in zip(*pair, strict=True)]
            for pair in zip(np.asarray(ids), _finite(probabilities), strict=True)
        ][: len(masks)]

    def predict(
        self, texts: str | Sequence[str | tuple[str, str]], *, batch_size: int = 32
    ) -> list[Prediction]:
        """Returns the class or the score of each text, or pair of texts, by a fine-tuned model.

        Raises:
            UserError: the model has no head that classifies texts.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        pairs = [(one,) if isinstance(one, str) else tuple(one) for one in listed]
        if wrong := [one for one in pairs if len(one) > 2 or not one]:
            raise UserError(f"{len(wrong[0])} texts in one example; give a text, or a pair of two")
        for pair in pairs:
            for text in _listed(pair):
                _check_unicode(text)
        if self._predictor is None:
            self._predictor = Predictor(self.config, self._params, self.tokenizer)
        return _predictions(self._predictor, pairs, batch_size)

    def _need(self, group: str, name: str, instead: str) -> None:
        if group not in self._groups:
            raise UserError(f"this model was saved without its {name}; {instead}")

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with [CLS] and [SEP], not truncated."""
        special = self.tokenizer.special
        for text in texts:
            _check_unicode(text)
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[special.cls, *encoding.ids, special.sep] for encoding in encodings]

    def _batches(self, texts: Sequence[str], batch_size: int) -> Iterator[_Rows]:
        """Yields batches of texts sorted by length, to reduce padding."""
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}; give 1 or more")
        limit, sep = self.config.max_position_embeddings, self.tokenizer.special.sep
        tokens = [t if len(t) <= limit else [*t[: limit - 1], sep] for t in self._tokens(texts)]
        order = np.argsort([len(t) for t in tokens], kind="stable")
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            longest = len(tokens[chosen[-1]])
            length = min(next((n for n in _LENGTHS if n >= longest), limit), limit)
            shape = min(_power_of_two(len(chosen)), batch_size), length
            ids = np.full(shape, self.tokenizer.special.pad, np.int32)
            real = np.zeros(shape, np.int32)
            for row, text in enumerate(chosen):
                ids[row, : len(tokens[text])] = tokens[text]
                real[row, : len(tokens[text])] = 1
            yield _Rows(chosen, ids, real)


def load(path: Path | str) -> Model:
    """Loads the model in a folder written by `bert-jax convert export` or `transformers`.

    Args:
        path: a local folder with config.json, model.safetensors and a tokenizer, of a BERT,
            RoBERTa, DistilBERT, RoFormer or RobertaPreLayerNorm. One saved without some of its
            heads can be loaded; methods that need them raise.

    Raises:
        UserError: no such folder, a file that is missing or damaged, weights that are not finite,
            or an unsupported variant of BERT; the message has the remedy.
    """
    folder = read_folder(Path(path))
    tensors, config, pad = folder.tensors, folder.config, folder.pad_token_id
    params = weights.from_transformers(tensors, config, pad)
    return Model(config, params, folder.tokenizer, frozenset(weights.groups_in(params)))


def _predictions(
    predictor: Predictor, pairs: Sequence[tuple[str, ...]], batch_size: int
) -> list[Prediction]:
    logits = predictor.logits(pairs, batch_size=batch_size)
    if predictor.is_regression:
        return [Prediction(None, None, float(score)) for (score,) in logits]
    shares = probabilities(logits)
    chosen = zip(logits.argmax(1).tolist(), shares.max(1).tolist(), strict=True)
    return [Prediction(predictor.labels[label], share) for label, share in chosen]


def _listed(texts: str | Sequence[str]) -> list[str]:
    listed = [texts] if isinstance(texts, str) else list(texts)
    wrong = [type(text).__name__ for text in listed if not isinstance(text, str)]
    if wrong:
        raise UserError(f"texts must be strings, not {wrong[0]}")
    return listed


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # such as command-line bytes that are not UTF-8
        raise UserError(
            f"{_short(text)!a}: character {error.start + 1} is not Unicode text; give UTF-8"
        ) from None


def _finite(computed: jax.Array) -> np.ndarray:
    """The array on the host; raises UserError if not finite, as finite weights may overflow."""
    values = np.asarray(computed)
    if not np.isfinite(values).all():
        raise UserError("the model outputs NaN or infinite values; export an earlier step")
    return values


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


# The compiled functions. "highest" because accelerators otherwise multiply float32 matrices in
# lower precision, and the outputs are compared with other libraries'.


@jax.default_matmul_precision("highest")
def _hidden(graph: nnx.GraphDef, params: Any, ids_BxS: jax.Array, real_BxS: jax.Array) -> jax.Array:
    model = nnx.merge(graph, params)
    positions_BxS = jnp.broadcast_to(jnp.arange(ids_BxS.shape[1])[None], ids_BxS.shape)
    return model.encoder(ids_BxS, jnp.zeros_like(ids_BxS), real_BxS, positions_BxS)


@jax.default_matmul_precision("highest")
def _vectors(
    graph: nnx.GraphDef, params: Any, ids_BxS: jax.Array, real_BxS: jax.Array, *, pooling: Pooling
) -> jax.Array:
    x_BxSxH = _hidden(graph, params, ids_BxS, real_BxS)
    if pooling == "cls":
        return x_BxSxH[:, 0]
    if pooling == "pooled":
        first_Bx1 = jnp.zeros((len(ids_BxS), 1), jnp.int32)
        return nnx.merge(graph, params).encoder.pooled(x_BxSxH, first_Bx1)[:, 0]
    total_BxH = jnp.where(real_BxS[..., None] > 0, x_BxSxH, 0).sum(1)
    return total_BxH / jnp.maximum(real_BxS.sum(1, keepdims=True), 1)


@jax.default_matmul_precision("highest")
def _fills(
    graph: nnx.GraphDef,
    params: Any,
    ids_1xS: jax.Array,
    real_1xS: jax.Array,
    positions_P: jax.Array,
    *,
    entries: int,
    top_k: int,
) -> tuple[jax.Array, jax.Array]:
    """Ids and probabilities [P, top_k] of the tokenizer's entries, in descending order."""
    model = nnx.merge(graph, params)
    x_1xPxH = _hidden(graph, params, ids_1xS, real_1xS)[:, positions_P]
    head = getattr(model, MASKED_LM.head)
    logits_PxV = head(x_1xPxH, model.encoder.embeddings.word[...])[0]
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits_PxV)[:, :entries], top_k)
    return ids, probabilities
