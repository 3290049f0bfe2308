"""How a family of classes in transformers names weights and settings, relative to BERT."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.next_sentence import NEXT_SENTENCE


@dataclass(frozen=True)
class Layout:
    """A family of classes, such as BertModel and BertForMaskedLM.

    A model has the layout whose first three attributes equal its own. Kernels are [out, in] in all
    of them, with one tensor for each layer, and for query, key and value.
    """

    layout: str  # config.model.layout
    position: str  # config.model.position
    norm_position: str  # config.model.norm_position
    model_type: str  # in config.json
    classes: str  # the first part of the names of its classes
    base: str  # prefix of its tensors, `base_model_prefix`
    names: tuple[tuple[str, str], ...] = ()  # parts of BERT's tensor names and its own, in order
    other_types: tuple[str, ...] = ()  # `model_type`s of the same layout, which can be imported
    pairs: bool = False  # whether it has a pooler and a sentence-pair head next to the MLM head
    positions_after_pad: bool = False  # position 0 is row `pad_token_id` + 1 of the table
    only_gelu: bool = False  # its MLM head computes GELU with erf, whatever `hidden_act`
    token_types: bool = True  # whether it embeds them
    keys: Mapping[str, str] = field(default_factory=dict)  # of config.json: BERT's name -> its own
    # Keys of config.json with the one value that our models compute.
    constants: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[str, ...] = ()  # keys that must be absent, None or equal to hidden_size
    # Settings of ours that its config.json does not have, with the value that it computes.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()  # prefixes of tensors that hold nothing learned

    def tensor_name(self, name: str) -> str:
        """Returns the name of a tensor from that in BERT."""
        for part, own in (("bert.", f"{self.base}."), *self.names):
            name = name.replace(part, own)
        return name

    def rows_before(self, pad_token_id: int) -> int:
        """Returns the rows of the position table before that of position 0."""
        return pad_token_id + 1 if self.positions_after_pad else 0

    def class_name(self, heads: Collection[str]) -> str:
        """Returns the class that loads every exported weight of a model with these heads."""
        pair = self.pairs and NEXT_SENTENCE.head in heads
        if MASKED_LM.head in heads:
            return f"{self.classes}{'ForPreTraining' if pair else 'ForMaskedLM'}"
        return f"{self.classes}{'ForNextSentencePrediction' if pair else 'Model'}"
