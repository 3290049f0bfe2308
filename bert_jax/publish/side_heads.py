"""The section of a model card on heads.safetensors: how the heads there are used in PyTorch.

The lines of each head are in its objective. They use `model` and `tokenizer` of the card, the
hidden states of one or two texts, and the functions that are defined before them.
"""

import textwrap
from collections.abc import Sequence

from bert_jax.config.schema import ModelConfig
from bert_jax.convert.layouts.layout import Layout
from bert_jax.convert.weight_files import HEADS
from bert_jax.objectives.objective import Objective

_SECTION = """## Other heads

{name} has no place for the {titles}: the weights are in `{file}`, which `bert_jax.load` reads. In
PyTorch, after the lines above:

```python
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

heads = load_file("path/to/this/folder/{file}")
heads = {{name: weights.to(model.dtype) for name, weights in heads.items()}}


def dense(name, x):
    return F.linear(x, heads[f"{{name}}.weight"], heads.get(f"{{name}}.bias"))


inputs = tokenizer({texts}, return_tensors="pt")
with torch.no_grad():
    hidden = model.base_model(**inputs).last_hidden_state
{lines}
```"""


def other_heads(
    learned: Sequence[Objective], config: ModelConfig, layout: Layout, name: str
) -> str:
    """Returns the section on those heads of a model for which its class has no place; "" if there
    are none.

    Args:
        learned: the objectives of the model.
        name: of its class.
    """
    found = layout.class_of([objective.head for objective in learned])
    learned = [objective for objective in learned if objective.head not in found.heads]
    if not learned:
        return ""
    pooled = f'torch.tanh(dense("{layout.tensor_name("bert.pooler.dense")}", hidden[:, 0]))'
    lines = "".join(objective.pytorch for objective in learned).format(
        pooled="model(**inputs).pooler_output" if found.pooler else pooled,
        pair=layout.tensor_name("cls.seq_relationship.").removesuffix("."),
        approximate="tanh" if config.hidden_act == "gelu_tanh" else "none",
        eps=config.layer_norm_eps,
    )
    texts = ["It rained all night and all day.", "In the morning the river rose."]
    if not any(objective.needs_pooler(config) for objective in learned):
        del texts[1]  # the model may have one token type
    titles = [objective.head_title for objective in learned]
    return _SECTION.format(
        name=name,
        titles=f"{' and '.join(titles)} head{'s' if len(titles) > 1 else ''}",
        file=HEADS,
        texts=", ".join(f'"{text}"' for text in texts),
        lines=textwrap.indent(lines.rstrip(), " " * 4),
    )
