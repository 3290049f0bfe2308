"""`config.distillation`: how a run learns from the model that `config.teacher` names."""

import dataclasses
from typing import Literal

from bert_jax.config.ranges import Amount, Positive
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Defaults are those of DistilBERT (Sanh et al. 2019, arXiv 1910.01108, and its research code).

    The loss is kl_weight · T² · KL(teacher ‖ student) + mlm_weight · masked tokens + cosine_weight
    · (1 - cosine of both networks' last states), each a mean over its positions, + the losses of
    other objectives.
    """

    temperature: Positive = 2.0  # T, by which both networks' logits are divided
    kl_weight: Amount = 5.0
    mlm_weight: Amount = 2.0
    cosine_weight: Amount = 1.0  # through a dense layer of its own where the widths differ
    # Where the divergence and the cosine are computed: at all tokens, or at those to predict.
    positions: Literal["all", "masked"] = "all"
    # Layers of the teacher, from 0, that the student's layers start as: "0,2,4,7,9,11". Embeddings
    # and masked-token head are copied too. "": the student starts as without a teacher.
    teacher_layers: str = ""

    def __post_init__(self) -> None:
        _ = self.layers  # which may be refused
        if not (self.kl_weight or self.cosine_weight):
            raise UserError(
                "config.distillation.kl_weight and cosine_weight are both 0: nothing is learned "
                "from the teacher; raise one"
            )

    @property
    def changed(self) -> list[str]:
        """The names of the settings that differ from their defaults."""
        return [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers in `teacher_layers`."""
        parts = [part.strip() for part in self.teacher_layers.split(",")]
        if parts == [""]:
            return ()
        wrong = next((part for part in parts if not part.isdecimal()), None)
        if wrong is not None:  # "" of two commas is one, too
            raise UserError(
                f"config.distillation.teacher_layers={self.teacher_layers!r}: {wrong!r} is no "
                'number of a layer; give them as in "0,2,4,7,9,11"'
            )
        return tuple(map(int, parts))
