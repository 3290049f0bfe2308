"""The activation functions of the models, and their names in other programs."""

from typing import Annotated, Final, Literal

from bert_jax.data_pipeline.settings import Meaning

# All names of transformers for the two.
ACTIVATIONS: Final = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
}
# The names that are written.
WRITTEN: Final = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
# Other functions, although spelled like these: GELU "10" is clipped.
_OTHERS: Final = (
    "relu", "selu", "elu", "celu", "silu", "geglu", "quick_gelu", "gelu_10", "leaky_relu", "relu2",
    "relu6", "prelu", "glu", "reglu", "swiglu", "swish", "mish",
)  # fmt: skip
Activation = Annotated[
    Literal["gelu", "gelu_tanh"],
    Meaning({**ACTIVATIONS, "gelu_erf": "gelu", **dict.fromkeys(_OTHERS, "")}),
]
