"""Measures the vectors of a run in a search while it trains, as `bert-jax evaluate --retrieval`
measures those of its checkpoints: the same texts, prompts, lengths and precision."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from bert_jax.api import bm25
from bert_jax.api.corpus_search import Watch
from bert_jax.api.model import Model
from bert_jax.api.vector_evaluation import by_vectors, by_words, model_of_run
from bert_jax.config.schema import Config
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.finetune.search_measure import Measures
from bert_jax.finetune.tasks.retrieval_files import Retrieval
from bert_jax.parallel.local_devices import replicate
from bert_jax.parallel.partition import replicate_like
from bert_jax.runtime.log import logger


class RunSearch:
    """See `search_measure.SearchMeasure`; its arguments are those of `OpenSearch`."""

    def __init__(self, config: Config, tokenizer: Tokenizer, data: Retrieval) -> None:
        self._config, self._tokenizer, self._data = config, tokenizer, data
        self._model: Model | None = None

    def of_words(self, advance: Callable[[], None]) -> Measures:
        if not bm25.is_installed():
            logger.warning(bm25.NOT_INSTALLED)
            return {}
        return _means(by_words(self._data, _watch(advance)))

    def of_params(self, params: Mapping[str, Any], advance: Callable[[], None]) -> Measures:
        with jax.set_mesh(None):  # texts are divided among the devices of this process alone
            model = self._filled(_on_host(params))
            try:
                return _means(by_vectors(model, "vectors", self._data, _watch(advance)))
            finally:
                model.params = {}  # no second copy while the run trains

    def _filled(self, params: Mapping[str, Any]) -> Model:
        """Returns the model with these parameters; it is compiled once for all evaluations."""
        if self._model is None:
            own = self._config, params, self._tokenizer
            self._model = model_of_run(self._config.model, *own)
            self._names = tuple(self._model.params)
        else:
            self._model.params = replicate({name: params[name] for name in self._names})
            sentence = encoder_of_run(self._config, params)
            self._model.part_weights = replicate(sentence.weights if sentence else ())
        return self._model


def _means(of_queries: Mapping[str, np.ndarray]) -> Measures:
    return {name: float(values.mean()) for name, values in of_queries.items()}


def _watch(advance: Callable[[], None]) -> Watch:
    """Returns what calls `advance` before what is counted and at each count; a run has a bar of its
    own."""

    @contextmanager
    def watch(what: str, total: int) -> Iterator[Callable[[int], None]]:
        advance()
        yield lambda done: advance()

    return watch


def _on_host(params: Mapping[str, Any]) -> Any:
    """Returns whole parameters, one array on devices at a time; all processes of a job call it."""

    def whole(x: jax.Array) -> np.ndarray:
        if x.is_fully_addressable:
            return np.asarray(x)
        return np.asarray(replicate_like(x)(x).addressable_data(0))

    return jax.tree.map(whole, params)
