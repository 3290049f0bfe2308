"""ModernBERT: modeling_modernbert.py of transformers. Ettin and mmBERT have this layout.

Its config.json has two forms. That of transformers 4 is written, which 5 reads, too; that of 5 has
a list of the layers' kinds and the bases of their rotary angles by kind.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from bert_jax.config.activations import ACTIVATIONS, WRITTEN
from bert_jax.config.ranges import INT32, Layers
from bert_jax.config.schema import ModelConfig
from bert_jax.convert.layouts.layout import CHOICE, CLASSIFIER, QA, TAGGER, Layout, dense, norm
from bert_jax.data_pipeline.settings import Within, checked, shown
from bert_jax.errors import UserError
from bert_jax.objectives.objective import Tensor

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_EVERY: Final = "global_attn_every_n_layers"
# Defaults of transformers' ModernBertConfig.
_DEFAULT_EVERY, _DEFAULT_WINDOW = 3, 128
_THETAS: Final = {_GLOBAL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}
_BIASES: Final = ("attention_bias", "mlp_bias", "classifier_bias")


def _write(model: ModelConfig) -> dict[str, Any]:
    window = model.local_attention
    return {
        # The defaults of its class are those of its own vocabulary.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        "norm_bias": model.norm_bias,
        **dict.fromkeys(_BIASES, model.linear_bias),
        "classifier_pooling": model.classifier_pooling,
        "classifier_activation": WRITTEN[model.hidden_act],
        # Where every layer attends to all tokens, the window is that of none.
        "local_attention": window or _DEFAULT_WINDOW,
        _EVERY: model.global_attn_every_n_layers if window else 1,
        "global_rope_theta": model.global_rope_theta,
        "local_rope_theta": model.local_rope_theta,
    }


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    acts = [values.get(f"{name}_activation", "gelu") for name in ("hidden", "classifier")]
    if len({ACTIVATIONS.get(str(act)) for act in acts}) > 1:
        raise UserError(
            f"classifier_activation={shown(acts[1])} is not that of the layers, "
            "hidden_activation, which is not supported"
        )
    biases = {name: values.get(name, False) for name in _BIASES}
    if len({*map(str, biases.values())}) > 1:
        given = ", ".join(f"{name}={shown(value)}" for name, value in biases.items())
        raise UserError(f"{given}: only models with all of these biases or none are supported")
    every, thetas = _every(values), _thetas(values)
    if every == 1:  # no layer reads it
        del thetas[_THETAS[_LOCAL][0]]
    return {
        "classifier_pooling": values.get("classifier_pooling", "cls"),
        "norm_bias": values.get("norm_bias", False),
        "linear_bias": biases[_BIASES[0]],
        **({"local_attention": _window(values), _EVERY: every} if every > 1 else {}),
        **thetas,
    }


def _every(values: Mapping[str, Any]) -> int:
    """Returns n, if the layers 0, n, 2n, … attend to all tokens."""
    given, kinds = values.get(_EVERY), values.get("layer_types")
    if kinds is None:
        return int(checked(_DEFAULT_EVERY if given is None else given, Layers, _EVERY))
    checked(values["num_hidden_layers"], Layers, "num_hidden_layers")
    count = len(kinds) if isinstance(kinds, list) else 0
    candidates = [_DEFAULT_EVERY, *range(1, count + 1)] if given is None else [given]
    for every in candidates:
        n = int(checked(every, Layers, _EVERY))
        wanted = [_LOCAL if i % n else _GLOBAL for i in range(count)]
        if kinds == wanted and count == values["num_hidden_layers"]:
            return n
    raise UserError(
        f"layer_types={shown(kinds)} is not supported; of "
        f"{shown(values['num_hidden_layers'])} layers 0, n, 2n, … should be {_GLOBAL}, the others "
        f"{_LOCAL}" + ("" if given is None else f", n the {_EVERY}={given}")
    )


def _window(values: Mapping[str, Any]) -> int:
    """Returns the tokens of a window; UserError if releases of transformers read another one."""
    half = values.get("sliding_window")
    if half is not None and "local_attention" not in values:  # transformers 5 takes this alone
        return 2 * int(checked(half, Annotated[int, Within(1, INT32 // 2)], "sliding_window"))
    window = values.get("local_attention", _DEFAULT_WINDOW)
    window = int(checked(window, Annotated[int, Within(2, INT32)], "local_attention"))
    if half not in (None, window // 2):
        raise UserError(
            f"sliding_window={shown(half)} is not half of local_attention={window}; transformers "
            "5 reads the former, 4 the latter; make them agree"
        )
    return window


def _thetas(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the bases of the rotary angles, in global and in local layers."""
    by_kind, found = values.get("rope_parameters") or {}, dict[str, Any]()
    if not isinstance(by_kind, dict) or not by_kind.keys() <= _THETAS.keys():
        raise UserError(f"rope_parameters={shown(by_kind)} should have {_GLOBAL} and {_LOCAL}")
    for kind, (key, default) in _THETAS.items():
        # As in transformers 4: null is that of the global layers.
        old = values.get(key, default)
        old = found[_THETAS[_GLOBAL][0]] if old is None and kind == _LOCAL else old
        given = by_kind.get(kind) or {}
        own = {"rope_type": "default", "rope_theta": old}
        if isinstance(given, dict):
            own |= given
        if not isinstance(given, dict) or own["rope_type"] != "default" or len(own) > 2:
            raise UserError(
                f"rope_parameters.{kind}={shown(given)}: only plain angles are supported"
            )
        if values.get(key) is not None and own["rope_theta"] != old:
            raise UserError(
                f"{key}={shown(old)} differs from rope_parameters.{kind}; make them agree"
            )
        found[key] = own["rope_theta"]
    # A name of the global one in transformers 4, which 5 does not read.
    key = _THETAS[_GLOBAL][0]
    if values.get("rope_theta", found[key]) != found[key]:
        raise UserError(
            f"rope_theta={shown(values['rope_theta'])} differs from {key}={shown(found[key])}; "
            "make them agree"
        )
    return found


_HEADS: Final = (CLASSIFIER, TAGGER, QA, CHOICE)
_LAYER: Final = "model.layers.{layer}."
_ENCODER: Final = (
    Tensor("encoder.embeddings.word", "model.embeddings.tok_embeddings.weight", of_vocabulary=True),
    *norm("encoder.embeddings.norm", "model.embeddings.norm"),
    *dense("encoder.layers.attention.qkv", f"{_LAYER}attn.Wqkv"),
    *dense("encoder.layers.attention.output", f"{_LAYER}attn.Wo", inputs=2),
    *norm("encoder.layers.attention.norm", f"{_LAYER}attn_norm"),
    *dense("encoder.layers.mlp.up", f"{_LAYER}mlp.Wi"),
    *dense("encoder.layers.mlp.down", f"{_LAYER}mlp.Wo"),
    *norm("encoder.layers.mlp.norm", f"{_LAYER}mlp_norm"),
    *norm("encoder.norm", "model.final_norm"),
    # For sentence pairs, which no class has.
    Tensor("encoder.pooler.kernel", "model.pooler.dense.weight", 1),
    Tensor("encoder.pooler.bias", "model.pooler.dense.bias"),
)
MODERNBERT = Layout(
    layout="modernbert",
    position="rotary",
    norm_position="pre",
    model_type="modernbert",
    prefix="ModernBert",
    base="model",
    names=(
        ("cls.predictions.transform.dense.", "head.dense."),
        ("cls.predictions.transform.LayerNorm.", "head.norm."),
        ("cls.predictions.decoder.", "decoder."),
        ("cls.predictions.bias", "decoder.bias"),
        ("classifier.dense.", "head.dense."),
        ("classifier.norm.", "head.norm."),
        ("choice.dense.", "head.dense."),
        ("choice.norm.", "head.norm."),
        ("classifier.out_proj.", "classifier."),
        ("qa_outputs.", "classifier."),
    ),
    encoder=_ENCODER,
    rotates_halves=True,
    token_types=False,
    dense=dict.fromkeys(_HEADS, "hidden_act"),
    head_norm=True,
    head_dropout=dict.fromkeys(_HEADS, ("classifier_dropout", 0.0)),
    keys={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
    # Its dropout in the feed-forward network is before the last dense layer, and one rate is that
    # of attention's probabilities and of its result.
    constants={
        **dict.fromkeys(("embedding_dropout", "attention_dropout", "mlp_dropout"), 0.0),
        "decoder_bias": True,
    },
    defaults={"layer_norm_eps": 1e-5},
    own_fixed={
        "type_vocab_size": 0, "gated_mlp": True, "first_attention_norm": False,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    layer_settings=(
        "norm_bias", "linear_bias", "local_attention", _EVERY, "global_rope_theta",
        "local_rope_theta", "classifier_pooling",
    ),
    write=_write,
    read=_read,
)  # fmt: skip
