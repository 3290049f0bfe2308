"""`config.model.generator`: the network that replaces tokens, in replaced-token detection."""

import dataclasses
from typing import Annotated, Literal

from bert_jax.config.ranges import HEADS, LAYERS, WIDTH
from bert_jax.data_pipeline.settings import Within

_Width = Annotated[int, Within(0, WIDTH)]
_Layers = Annotated[int, Within(0, LAYERS)]
_Heads = Annotated[int, Within(0, HEADS)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """Sizes that differ from those of the model, which is the discriminator; 0: the same.

    A generator of another width has a dense layer after the embeddings.
    """

    hidden_size: _Width = 0
    num_hidden_layers: _Layers = 0
    num_attention_heads: _Heads = 0
    intermediate_size: _Width = 0
    # One module for both, trained by both, as in ELECTRA; or DeBERTaV3's: the discriminator adds
    # tables of its own to the generator's, and its gradients reach only its own.
    embedding_sharing: Literal["shared", "gradient_disentangled"] = "shared"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that differ, by name."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in own.items() if isinstance(value, int) and value}
