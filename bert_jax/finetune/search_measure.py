"""The search that measures the vectors of a run at each evaluation, `config.task.retrieval`.

Vectors of many texts and their search are in a room above this one, so a command hands them in.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.finetune.tasks.retrieval_files import Retrieval

UNTRAINED: Final = "untrained (step 0)"
Measures = Mapping[str, float]  # of `metrics.retrieval.MEASURES`, means over the queries


class SearchMeasure(Protocol):
    """Measures a search of the documents of a folder."""

    def of_words(self, advance: Callable[[], None]) -> Measures:
        """Returns the measures of BM25; none, which is said in the log, without its package.

        advance: called now and then; an exception from it ends the search.
        """

    def of_params(self, params: Mapping[str, Any], advance: Callable[[], None]) -> Measures:
        """Returns the measures of the vectors that parameters of the run make.

        All processes of the job call it. Raises UserError if a vector is not finite.
        """


# The configuration of a run with its head, its tokenizer, and what is searched.
OpenSearch = Callable[[Config, Tokenizer, Retrieval], SearchMeasure]
