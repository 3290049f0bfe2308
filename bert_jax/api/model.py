"""Inference with a pretrained model: `bert_jax.load(path)` returns a `Model`.

Dimensions: T texts, B rows, S positions in a row, N places for texts in a row, H hidden, D numbers
of the joined layers (H of one, or of their mean), V vocabulary, P masks in a text.
"""

# Over 300 lines: one public class, whose methods and their documentation users read together.

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.api import compiled, sentence_vectors
from bert_jax.api.compiled import Pooling, check_choice
from bert_jax.api.outputs import Fill, Prediction, Tokens
from bert_jax.api.text_rows import Rows, text_rows
from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_settings import Join
from bert_jax.convert import weights
from bert_jax.convert.model_folders import model_folder
from bert_jax.convert.reader import read_folder
from bert_jax.convert.sentence_encoder import SentenceEncoder, lowercased
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count, nearest
from bert_jax.finetune.predictor import Predictor
from bert_jax.finetune.tasks.encoding import check_no_padding, encode
from bert_jax.finetune.tasks.labeled_examples import Question, Words
from bert_jax.finetune.tasks.multiple_choice import Choices
from bert_jax.finetune.tasks.qa import Answers
from bert_jax.finetune.tasks.task_kinds import kind_of_model
from bert_jax.finetune.tasks.text_task import PredictedClass
from bert_jax.model.layer_states import Layers, parse_layers
from bert_jax.objectives.known_objectives import with_heads
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.replaced_tokens import to_give
from bert_jax.parallel.local_devices import power_of_two, replicate, shard_rows


class Model:
    """A BERT encoder with its tokenizer; created by `load`.

    Every method tokenizes texts as `AutoTokenizer`: [CLS] text [SEP], special tokens such as
    "[MASK]" are recognized in the text, long texts are truncated. Computes in float32.

    Attributes:
        config: the architecture.
        tokenizer: the vocabulary and its special ids.
        params: the weights, on every local device.
        sentence: what makes vectors of texts in a folder of sentence-transformers; None in others.
        part_weights: of the parts of `sentence`, on every local device.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Any,
        tokenizer: Tokenizer,
        groups: frozenset[str],
        sentence: SentenceEncoder | None = None,
        pad: int | None = None,
        trained_length: int | None = None,
    ):
        """
        Args:
            groups: the parts of `params`.
            sentence: what makes vectors of texts, in a folder of sentence-transformers.
            pad: see `check_no_padding`.
            trained_length: tokens of the longest sequences in training, to which the head of a task
                reads texts; None: all positions.
        """
        if sentence and sentence.lowercase:
            tokenizer = lowercased(tokenizer)
        self.config, self.tokenizer, self._groups = config, tokenizer, groups
        self.sentence, self.pad, self._trained_length = sentence, pad, trained_length
        self.params, self.part_weights = replicate((params, sentence.weights if sentence else ()))
        self._predictor: Predictor | None = None
        heads, pooler = with_heads(groups), "pooler" in groups
        self.graph, _ = declare(config, ComputeConfig.plain(), heads, pooler=pooler)
        join = ("layers", "join")
        self._states = jax.jit(partial(compiled.states, self.graph), static_argnames=join)
        self._vectors = jax.jit(
            partial(compiled.vectors, self.graph), static_argnames=(*join, "pooling")
        )
        if sentence:
            self._sentence_vectors = jax.jit(
                partial(sentence_vectors.vectors, self.graph),
                static_argnames=("layers", "parts", "prompt"),
            )
        fills = partial(compiled.fills, self.graph, entries=tokenizer.vocab_size)
        self._fills = jax.jit(fills, static_argnames="top_k")

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<Model: {count(config.num_hidden_layers, 'layer')} of {config.hidden_size}, "
            f"{config.vocab_size:,} entries, {config.max_position_embeddings} positions; "
            f"{', '.join(sorted(self._groups))}"
            f"{f'; {self.sentence.titles}' if self.sentence else ''}>"
        )

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        layers: Layers = -1,
        join: Join = "concat",
        batch_size: int | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray:
        """Returns one vector per text, float32 [T, D]; a single text counts as a list of one.

        A folder of sentence-transformers says how a text becomes a vector: its pools, normalization
        and dense layers are applied unless `pooling` is given. Its longest text and its default
        prompt, which comes before every text, hold with any pooling.

        Args:
            pooling: None: as the folder says, otherwise "mean": the mean over all tokens, [CLS] and
                [SEP] included; "max": the largest of each number over them; "cls": the hidden state
                of [CLS]; "pooled": the output of the tanh pooler on [CLS] of the last layer,
                trained by a sentence-pair objective.
            layers: whose states are pooled: 0 is the embeddings, -1 the last layer, "-4:" the last
                four, "0,6,12" three of them.
            join: "concat": the layers one after the other; "mean": their mean.
            batch_size: rows of 128 tokens per batch; texts share rows, and the local devices share
                a batch. None: 32 for each device, but 8 on CPUs, whose caches then hold what a
                layer computes.
            prompt_name: of the folder's prompts, that which comes before every text in place of its
                default one, such as "query".

        Raises:
            UserError: another pooling, no such layer, other layers than the folder's own pools are
                of, "pooled" if the folder has no pooler, or no prompt of this name.
        """
        if pooling is not None:
            check_choice("pooling", pooling, Pooling)
        chosen = self._layers(layers, join)
        prompt = self.prompt(prompt_name)
        texts = [f"{prompt}{text}" for text in as_texts(texts)]
        if self.sentence and pooling is None:
            return self._encoded(texts, self.sentence, chosen, batch_size, prompt)
        pooling = pooling or "mean"
        if pooling == "pooled":
            self._need("pooler", "pooler", 'use pooling="mean" or "cls"')
            if chosen != (self.config.num_hidden_layers,):
                raise UserError('pooling="pooled" uses the last layer; leave layers out')
        tokens = self.tokens(texts)
        width = self.config.hidden_size * (len(chosen) if join == "concat" else 1)
        out = np.zeros((len(tokens), width), np.float32)
        for rows in self._rows(tokens, batch_size):
            vectors = self._vectors(
                self.params, shard_rows(rows), layers=chosen, join=join, pooling=pooling
            )
            used = rows.texts >= 0
            out[rows.texts[used]] = _finite(np.asarray(vectors)[used])
        return out

    def _encoded(
        self,
        texts: Sequence[str],
        sentence: SentenceEncoder,
        layers: tuple[int, ...],
        batch_size: int | None,
        prompt: str,
    ) -> np.ndarray:
        """Returns the vectors of a folder of sentence-transformers, float32 [T, D].

        prompt: which the texts begin with.
        """
        if layers != (self.config.num_hidden_layers,):
            raise UserError(
                f"the model's own {sentence.titles} use its last layer; for other layers give "
                'pooling, such as "mean"'
            )
        sentence.check_prompt(prompt)
        prompt_tokens = len(self.tokens(prompt)[0].ids) - 1 if prompt else 0
        tokens = self.tokens(texts)
        out: list[np.ndarray] = [np.empty(0)] * len(tokens)
        for rows in self._rows(tokens, batch_size):
            vectors = self._sentence_vectors(
                self.params, self.part_weights, shard_rows(rows),
                layers=layers, parts=sentence.parts, prompt=prompt_tokens,
            )  # fmt: skip
            used = rows.texts >= 0
            found = _finite(np.asarray(vectors)[used])
            for text, vector in zip(rows.texts[used], found, strict=True):
                out[text] = vector[: sentence.dimensions]
        return np.stack(out) if out else np.zeros((0, sentence.width), np.float32)

    def prompt(self, name: str | None = None) -> str:
        """Returns the folder's prompt of this name, or its default one, or ""; UserError if it has
        none of this name, or one after which there is no room for a text."""
        prompts = self.sentence.prompts if self.sentence else {}
        if name is not None and name not in prompts:
            raise UserError(f"prompt_name={name!r}: not in the folder{nearest(name, prompts)}")
        default = self.sentence.prompt if self.sentence else ""
        prompt = default if name is None else prompts[name]
        if prompt and len(self.tokens(prompt)[0].ids) == self.longest:
            room = f"the {self.longest - 2:,} tokens of a text"
            raise UserError(f"{_short(prompt)!r}: a prompt that fills {room}")
        return prompt

    def hidden_states(
        self,
        texts: str | Sequence[str],
        *,
        layers: Layers = -1,
        join: Join = "concat",
        batch_size: int | None = None,
    ) -> list[np.ndarray]:
        """Hidden states of each text, float32 [tokens, D], with [CLS] and [SEP]; the arguments are
        those of `encode`."""
        chosen, tokens = self._layers(layers, join), self.tokens(texts)
        out: list[np.ndarray] = [np.empty(0)] * len(tokens)
        for rows in self._rows(tokens, batch_size):
            states = np.asarray(
                self._states(self.params, shard_rows(rows), layers=chosen, join=join)
            )
            _finite(states[rows.examples > 0])
            for row, place in np.argwhere(rows.texts >= 0):
                text, start = rows.texts[row, place], rows.starts[row, place]
                out[text] = states[row, start : start + len(tokens[text].ids)].copy()
        return out

    def tokens(self, texts: str | Sequence[str], *, spans: bool = False) -> list[Tokens]:
        """Returns the tokens of each text, whose states `hidden_states` gives.

        Args:
            spans: whether to find where each token stands in the text, which takes longer.
        """
        return self._tokens(texts, self.longest, spans=spans)

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is not cut."""
        limit = self.sentence.max_length if self.sentence else None
        return min(
            limit or self.config.max_position_embeddings, self.config.max_position_embeddings
        )

    def _tokens(self, texts: str | Sequence[str], longest: int, *, spans: bool) -> list[Tokens]:
        listed, special = as_texts(texts), self.tokenizer.special
        room, tokenizer = longest - 2, self.tokenizer
        encoded: Iterable[tuple[np.ndarray, np.ndarray | None]]
        if spans:
            encoded = tokenizer.encode_spans(listed)
        else:
            encoded = ((ids, None) for ids in tokenizer.encode_texts(listed))
        return [
            Tokens(
                [special.cls, *ids[:room].tolist(), special.sep],
                None if inside is None else inside[:room],
                max(0, len(ids) - room),
            )
            for ids, inside in encoded
        ]

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[Fill]]:
        """Returns the `top_k` most probable entries for each mask in the text, in order.

        A mask is written "[MASK]", or "<mask>" where the tokenizer is RoBERTa's.

        Several masks are predicted independently of each other, as in training.

        Raises:
            UserError: no [MASK] in the text, or one beyond the model's last position; or the folder
                has no masked-language-model head.
        """
        if as_texts(text) != [text]:
            raise UserError("fill_mask takes one text, not a list; call it for each")
        self._need(MASKED_LM.head, "masked-language-model head", to_give(self._groups))
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise UserError(f"top_k={top_k}; give 1 to {self.tokenizer.vocab_size}")
        longest, special = self.config.max_position_embeddings, self.tokenizer.special
        (tokens,) = self._tokens(text, longest, spans=False)
        mask = self.tokenizer.token(special.mask)
        (ids,) = self.tokenizer.encode_texts([text])
        if special.mask in ids[len(tokens.ids) - 2 :]:
            raise UserError(
                f"{_short(text)!r}: {len(tokens.ids) + tokens.cut} tokens, with a {mask} after the "
                f"model's limit of {len(tokens.ids)}; shorten it"
            )
        masks = [i for i, token in enumerate(tokens.ids) if token == special.mask]
        if not masks:
            raise UserError(f"no {mask} in {_short(text)!r}; put one in place of a word")
        check_no_padding([tokens.ids], self.tokenizer, self.config, self.pad)
        (rows,) = text_rows([tokens.ids], longest, special.pad, 1, devices=1)
        positions = np.zeros(power_of_two(len(masks)), np.int32)
        positions[: len(masks)] = masks
        entries, probabilities = self._fills(self.params, rows, positions, top_k=top_k)
        return [
            [Fill(self.tokenizer.token(i), float(p)) for i, p in zip(*pair, strict=True)]
            for pair in zip(np.asarray(entries), _finite(np.asarray(probabilities)), strict=True)
        ][: len(masks)]

    def predict(
        self, texts: str | Sequence[str | tuple[str, str]], *, batch_size: int = 32
    ) -> list[Prediction]:
        """Returns the class or the score of each text, or pair of texts, by a fine-tuned model.

        Raises:
            UserError: the model has no head that classifies or scores texts.
        """
        _check_batch_size(batch_size)
        listed = [texts] if isinstance(texts, str) else list(texts)
        pairs = [(one,) if isinstance(one, str) else tuple(one) for one in listed]
        if wrong := [one for one in pairs if len(one) > 2 or not one]:
            raise UserError(f"{len(wrong[0])} texts in one example; give one text, or a pair")
        for pair in pairs:
            as_texts(pair)
        predictor = self._predictor_of("classification", "regression")
        encoded = encode(self.tokenizer, self.config, pairs, predictor.longest)
        logits = predictor.logits(encoded, batch_size=batch_size)
        return [_prediction(predictor, values) for values in logits]

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Returns the tag of each word of each sentence, by a model fine-tuned for tagging.

        Raises:
            UserError: the model has no head for it, or a sentence is text instead of words.
        """
        sentences = list(sentences)
        for text in (one for one in sentences if isinstance(one, str)):
            raise UserError(f"{_short(text)!r}: give the words of a sentence as a list")
        words = [tuple(as_texts(sentence)) for sentence in sentences]
        predictor = self._predictor_of("tagging")
        listed = tuple(Words(str(i), one, None, i + 1) for i, one in enumerate(words))
        return list(predictor.predictions_of(listed)) if any(words) else [[] for _ in words]

    def answer(
        self, questions: Sequence[tuple[str, str]], *, null_threshold: float | None = None
    ) -> list[Answers]:
        """Returns the answers to questions, each with its text, by a model fine-tuned for them.

        Args:
            null_threshold: see `config.task.null_threshold`; None: every question has an answer.

        Raises:
            UserError: the model has no head for it, or a question is too long for it.
        """
        predictor = self._predictor_of("question_answering")
        pairs = [as_texts(pair) for pair in questions]
        if wrong := [one for one in pairs if len(one) != 2]:
            raise UserError(f"{len(wrong[0])} texts; give a question and the text with its answer")
        listed = tuple(
            Question(str(i), asked, text, (), False, i + 1) for i, (asked, text) in enumerate(pairs)
        )
        return (
            list(predictor.predictions_of(listed, null_threshold=null_threshold)) if listed else []
        )

    def choose(self, questions: Sequence[tuple[str, Sequence[str]]]) -> list[Prediction]:
        """Returns which of its choices follows each text, as `label`, with its probability, by a
        model fine-tuned for multiple choice.

        Args:
            questions: texts, each with its choices; all have the same number of them.

        Raises:
            UserError: the model has no head for it, or texts have other numbers of choices, or one.
        """
        questions = list(questions)
        for typed in (choices for _, choices in questions if isinstance(choices, str)):
            raise UserError(f"{_short(typed)!r}: give the choices of a text as a list")
        pairs = [(text, tuple(as_texts(choices))) for text, choices in questions]
        as_texts([text for text, _ in pairs])
        numbers = sorted({len(choices) for _, choices in pairs})
        if len(numbers) > 1 or min(numbers, default=2) < 2:
            found = " and ".join([*map(str, numbers[:-1]), count(numbers[-1], "choice")])
            raise UserError(f"{found}; give all texts the same number of them, 2 or more")
        predictor = self._predictor_of("multiple_choice")
        listed = tuple(
            Choices(str(i), text, "", choices, None, i + 1)
            for i, (text, choices) in enumerate(pairs)
        )
        chosen = predictor.predictions_of(listed)
        return [
            Prediction(one.choices[best], best.probability)
            for one, best in zip(listed, chosen, strict=True)
        ]

    def _predictor_of(self, *kinds: str) -> Predictor:
        """Returns the predictor; UserError if the model has no head of one of these kinds."""
        if self._predictor is None:
            kind_of_model(self.config, makes_vectors=self.sentence is not None)
            self._predictor = Predictor(
                self.config, self.params, self.tokenizer, self.pad, longest=self._trained_length
            )
        if (own := self._predictor.kind.name) not in kinds:
            raise UserError(
                f"the model has a {own} head; give one with a {' or '.join(kinds)} head"
            )
        return self._predictor

    def _need(self, group: str, name: str, instead: str) -> None:
        if group not in self._groups:
            raise UserError(f"this model was saved without its {name}; {instead}")

    def _layers(self, layers: Layers, join: str) -> tuple[int, ...]:
        """Returns the indices of the chosen states; UserError for none such, or another join."""
        check_choice("join", join, Join)
        return parse_layers(layers, self.config.num_hidden_layers)

    def _rows(self, tokens: Sequence[Tokens], batch_size: int | None) -> Iterator[Rows]:
        devices = jax.local_device_count()
        if batch_size is None:
            batch_size = devices * (8 if jax.default_backend() == "cpu" else 32)
        _check_batch_size(batch_size)
        longest, pad = self.config.max_position_embeddings, self.tokenizer.special.pad
        ids = [text.ids for text in tokens]
        check_no_padding(ids, self.tokenizer, self.config, self.pad)
        return text_rows(ids, longest, pad, batch_size, devices)


def load(path: Path | str) -> Model:
    """Loads the model in a folder that `bert-jax convert export`, `transformers` or
    `sentence-transformers` wrote.

    Args:
        path: a local folder, or hf:OWNER/NAME[@REVISION] on the Hugging Face hub, of a BERT,
            RoBERTa, DistilBERT, RoFormer, RobertaPreLayerNorm, ModernBERT, ALBERT or ELECTRA, with
            its tokenizer. One saved without some of its heads can be loaded; methods that need them
            raise. What makes vectors of texts in sentence-transformers makes those of `encode`.

    Raises:
        UserError: no such model, a file that is missing or damaged, weights that are not finite, or
            an unsupported variant of BERT; the message has the remedy.
    """
    with model_folder(path) as folder:
        found = read_folder(folder)
        config, pad = found.config, found.pad_token_id
        params = weights.from_transformers(found.tensors, config, pad)
    groups = frozenset(weights.groups_in(params))
    return Model(config, params, found.tokenizer, groups, found.sentence, pad, found.trained_length)


def _prediction(predictor: Predictor, logits: np.ndarray) -> Prediction:
    """logits: of one text, [C]."""
    if predictor.kind.name == "regression":
        return Prediction(None, None, float(logits[0]))
    found = PredictedClass.of(logits)
    return Prediction(predictor.labels[found], found.probability)


def as_texts(texts: str | Sequence[str]) -> list[str]:
    """Returns texts, or a single one, as a list; UserError for what is no Unicode text."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    wrong = [type(text).__name__ for text in listed if not isinstance(text, str)]
    if wrong:
        raise UserError(f"texts must be strings, not {wrong[0]}")
    for text in listed:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # such as command-line bytes that are not UTF-8
            raise UserError(
                f"{_short(text)!a}: character {error.start + 1} is not Unicode text; give UTF-8"
            ) from None
    return listed


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}; give 1 or more")


def _finite(values: np.ndarray) -> np.ndarray:
    """Returns the values; raises UserError if not finite, as finite weights may overflow."""
    if not np.isfinite(values).all():
        raise UserError("the model outputs NaN or infinite values; export an earlier step")
    return values


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
