"""`config.model.generator`: the network that replaces tokens, in replaced-token detection."""

import dataclasses
from typing import Annotated

from bert_jax.config.ranges import INT32
from bert_jax.data_pipeline.settings import Within

Size = Annotated[int, Within(0, INT32)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """Sizes that differ from those of the model, which is the discriminator; 0: the same.

    Both share the embeddings; a generator of another width has a dense layer after them.
    """

    hidden_size: Size = 0
    num_hidden_layers: Size = 0
    num_attention_heads: Size = 0
    intermediate_size: Size = 0
