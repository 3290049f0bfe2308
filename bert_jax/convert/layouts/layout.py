"""Layouts: names of weights and settings in a family of transformers classes, relative to BERT."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from bert_jax.config.layer_settings import LayerSettings
from bert_jax.config.schema import ModelConfig
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.multiple_choice import MULTIPLE_CHOICE
from bert_jax.objectives.next_sentence import NEXT_SENTENCE
from bert_jax.objectives.objective import Tensor, has_bias, has_norm_bias
from bert_jax.objectives.question_answering import QUESTION_ANSWERING
from bert_jax.objectives.sequence_classification import SINGLE_LABEL
from bert_jax.objectives.token_classification import TOKEN_CLASSIFICATION

CLASSIFIER: Final = SINGLE_LABEL.head
TAGGER: Final = TOKEN_CLASSIFICATION.head
QA: Final = QUESTION_ANSWERING.head
CHOICE: Final = MULTIPLE_CHOICE.head
# A setting without effect where there are no windows.
_WITHOUT_WINDOWS: Final = "global_attn_every_n_layers"
# The classes of most families: the end of their names, and their heads.
CLASSES: Final[Mapping[str, tuple[str, ...]]] = {
    "ForPreTraining": (MASKED_LM.head, NEXT_SENTENCE.head),
    "ForMaskedLM": (MASKED_LM.head,),
    "ForNextSentencePrediction": (NEXT_SENTENCE.head,),
    "ForSequenceClassification": (CLASSIFIER,),
    "ForTokenClassification": (TAGGER,),
    "ForQuestionAnswering": (QA,),
    "ForMultipleChoice": (CHOICE,),
    "Model": (),
}


def dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Tensor, Tensor]:
    """A dense layer, for a table of tensors; inputs: as of a `Tensor`."""
    return (
        Tensor(f"{ours}.kernel", f"{theirs}.weight", inputs),
        Tensor(f"{ours}.bias", f"{theirs}.bias", 0, exists=has_bias),
    )


def norm(ours: str, theirs: str) -> tuple[Tensor, Tensor]:
    """A LayerNorm, for a table of tensors."""
    return (
        Tensor(f"{ours}.scale", f"{theirs}.weight"),
        Tensor(f"{ours}.bias", f"{theirs}.bias", exists=has_norm_bias),
    )


@dataclass(frozen=True)
class HeadClass:
    """A class of transformers."""

    ending: str  # of its name
    heads: frozenset[str]
    pooler: bool

    @property
    def groups(self) -> set[str]:
        """The groups of its parameters: "encoder", heads, and "pooler" if it has one."""
        return {"encoder", *self.heads, *(["pooler"] if self.pooler else [])}


@dataclass(frozen=True)
class Layout:
    """A family of classes, such as BertModel and BertForMaskedLM.

    A model has the layout whose first three attributes equal its own. Kernels are [out, in] in all
    of them, with one tensor for each layer or group of layers.
    """

    layout: str  # config.model.layout
    position: str  # config.model.position
    norm_position: str  # config.model.norm_position
    model_type: str  # in config.json
    prefix: str  # of the names of its classes
    base: str  # prefix of its tensors, `base_model_prefix`
    names: tuple[tuple[str, str], ...] = ()  # parts of BERT's tensor names and its own, in order
    encoder: tuple[Tensor, ...] = ()  # with its own names; empty: BERT's
    # Rotary positions rotate dimensions i and D/2 + i of a head, not neighbours as ours do.
    rotates_halves: bool = False
    # In transformers 4.48 its masked-language-model head takes its bias from that of the decoder,
    # which is the same in its class, so that a file must have both.
    reads_decoder_bias: bool = False
    has_sinusoids: bool = False  # whether the encoder has a fixed table of angles
    # Other `model_type`s of the same layout, with the prefix of their classes.
    other_types: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: CLASSES)
    # The classes with a pooler. Only with one there are those that have a sentence-pair head.
    with_pooler: tuple[str, ...] = ()
    # Classes that compute otherwise than our models.
    without: tuple[str, ...] = ()
    positions_after_pad: bool = False  # position 0 is row `pad_token_id` + 1 of the table
    only_gelu: bool = False  # its MLM head computes GELU with erf, whatever `hidden_act`
    token_types: bool = True  # whether it embeds them
    projects_equal: bool = True  # whether tables as wide as the hidden states have a dense layer
    # Its heads of tasks: see `HeadConfig`. A head that is not in `dense` has none.
    dense: Mapping[str, Literal["tanh", "relu", "hidden_act"]] = field(default_factory=dict)
    head_norm: bool = False  # in those that are there
    classifier_drops_input: bool = False
    # By head of a task: the key of config.json with the dropout rate at the input of its output
    # layer, and the default, None for that of the hidden states. A head that is not here has none.
    head_dropout: Mapping[str, tuple[str, float | None]] = field(
        default_factory=lambda: dict.fromkeys(
            (CLASSIFIER, TAGGER, CHOICE), ("classifier_dropout", None)
        )
    )
    keys: Mapping[str, str] = field(default_factory=dict)  # of config.json: BERT's name -> its own
    # Keys of config.json with the one value that our models compute.
    constants: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[str, ...] = ()  # keys that must be absent, None or equal to hidden_size
    # Values of those that a config.json may omit, where they are not BERT's.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Settings of ours that its config.json does not have, with the value that it computes.
    own_fixed: Mapping[str, Any] = field(default_factory=dict)
    # Settings of `LayerSettings` that its config.json has; the others have their defaults.
    layer_settings: tuple[str, ...] = ()
    required: tuple[str, ...] = ()  # those of them that cannot be 0, which is BERT's
    # Those that are not a key each: a model -> keys of config.json, and back to settings of ours.
    # The latter raises UserError for values that our models do not compute.
    write: Callable[[ModelConfig], dict[str, Any]] = lambda model: {}
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings of ours that its config.json does not have, with the value that it computes."""
        layers = {
            setting.name: setting.default
            for setting in fields(LayerSettings)
            if setting.name not in (*self.layer_settings, _WITHOUT_WINDOWS)
        }
        return {**layers, **self.own_fixed}

    @property
    def has_pooler(self) -> bool:
        """True if the class without a head has a pooler."""
        return "Model" in self.with_pooler

    def tensor_name(self, name: str) -> str:
        """Returns the name of a tensor from that in BERT."""
        for part, own in (("bert.", f"{self.base}."), *self.names):
            name = name.replace(part, own)
        return name

    def rows_before(self, pad_token_id: int) -> int:
        """Returns the rows of the position table before that of position 0."""
        return pad_token_id + 1 if self.positions_after_pad else 0

    def class_of(self, heads: Collection[str]) -> HeadClass:
        """Returns the class with the most of these heads, and no other head."""
        fitting = [one for one in self._classes() if one.heads <= {*heads}]
        return max(fitting, key=lambda one: len(one.heads))  # the first of equal ones

    def find_class(self, name: str) -> HeadClass | None:
        """Returns the class with this name; None if it is not known."""
        return next((one for one in self._classes() if name.endswith(one.ending)), None)

    def class_name(self, heads: Collection[str], model_type: str = "") -> str:
        """Returns the name of `class_of`, in the family of a `model_type`."""
        prefix = self.other_types.get(model_type, self.prefix)
        return f"{prefix}{self.class_of(heads).ending}"

    def computes_otherwise(self, head: str) -> bool:
        """Returns whether the class with a head computes otherwise than our models."""
        return any(head in self.classes[ending] for ending in self.without)

    def _classes(self) -> list[HeadClass]:
        return [
            HeadClass(ending, frozenset(heads), ending in self.with_pooler)
            for ending, heads in self.classes.items()
            if ending not in self.without
            and (ending in self.with_pooler or NEXT_SENTENCE.head not in heads)
        ]
