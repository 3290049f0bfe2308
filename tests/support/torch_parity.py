"""The same model in transformers, and the same training steps on both sides."""

import json
from collections.abc import Sequence

import golden_case as cases
import numpy as np
import torch
import transformers
from parity_steps import RECIPE

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json

_PAIR_LABEL = {
    "BertForPreTraining": "next_sentence_label", "AlbertForPreTraining": "sentence_order_label",
}  # fmt: skip


def theirs_of(config: ModelConfig, params: dict) -> torch.nn.Module:
    """The model of transformers with our parameters."""
    values = json.loads(json.dumps(to_config_json(config, pad_token_id=cases.PAD, heads=params)))
    settings = transformers.AutoConfig.for_model(**values)
    model = getattr(transformers, values["architectures"][0])(settings)
    state = {n: torch.from_numpy(x) for n, x in weights.to_transformers(params, config).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert not {*missing} - {*model.all_tied_weights_keys}
    return model.eval()


def logits_of(model: torch.nn.Module, config: ModelConfig, batch: dict) -> torch.Tensor:
    """Returns the logits of their masked language model at every position."""
    out = model(**inputs_of(config, batch))
    return out.logits


def inputs_of(config: ModelConfig, batch: dict) -> dict[str, torch.Tensor]:
    inputs = {
        "input_ids": torch.from_numpy(batch["input_ids"]).long(),
        "attention_mask": torch.from_numpy(batch["example_ids"] > 0).long(),
    }
    if config.type_vocab_size:
        inputs["token_type_ids"] = torch.from_numpy(batch["token_type_ids"]).long()
    return inputs


def outputs_of(
    model: torch.nn.Module, config: ModelConfig, batch: dict
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns their loss and logits for a batch of ours; those of the masked language model at its
    masked positions."""
    inputs = inputs_of(config, batch)
    if type(model).__name__ == "ElectraForPreTraining":
        out = model(**inputs, labels=torch.from_numpy(batch["replaced"]).long())
        return out.loss, out.logits
    if not isinstance(config, TaskModelConfig):
        rows, slots = np.nonzero(batch["masked_weights"])
        places = rows, batch["masked_positions"][rows, slots]
        labels = np.full_like(batch["input_ids"], -100)
        labels[places] = batch["masked_labels"][rows, slots]
        inputs["labels"] = torch.from_numpy(labels).long()
        label = _PAIR_LABEL.get(type(model).__name__)
        if not label:
            out = model(**inputs)
            return out.loss, out.logits[places]
        inputs[label] = torch.from_numpy(batch["pair_labels"][:, 0]).long()
        out = model(**inputs)
        return out.loss, out.prediction_logits[places]
    if config.head.name == "qa":
        for theirs, ours in (("start_positions", "starts"), ("end_positions", "ends")):
            inputs[theirs] = torch.from_numpy(batch[f"answer_{ours}"][:, 0]).long()
    elif config.head.name == "tagger":
        labels = np.where(batch["token_weights"] > 0, batch["token_labels"], -100)
        inputs["labels"] = torch.from_numpy(labels).long()
    elif config.head.name == "choice":
        inputs["labels"] = torch.from_numpy(batch["choices"][:, 0]).long()
    else:
        labels = torch.from_numpy(batch["labels"][:, 0])
        inputs["labels"] = labels.long() if labels.dtype == torch.int32 else labels
    out = model(**inputs)
    if config.head.name == "qa":
        return out.loss, torch.stack([out.start_logits, out.end_logits], -1)
    return out.loss, out.logits


def _decays(name: str) -> bool:
    """Whether a parameter has weight decay: no bias has, and no LayerNorm."""
    _, module, kind = f".{name}".rsplit(".", 2)
    return kind != "bias" and "norm" not in module.lower()


def their_steps(model: torch.nn.Module, config: Config, batches: Sequence[dict]) -> list[float]:
    """Steps of torch.optim.AdamW as `tests/goldens/make.py` takes them; returns the losses."""
    peak, losses = config.optimizer.learning_rate, []
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in trained if _decays(n) is decays],
         "weight_decay": RECIPE.weight_decay * decays}
        for decays in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, peak, (RECIPE.b1, RECIPE.b2), RECIPE.eps)
    for number, batch in enumerate(batches):
        model.zero_grad()
        loss, _ = outputs_of(model, config.model, batch)
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), RECIPE.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = peak * (1 - number / RECIPE.total_steps)
        optimizer.step()
    return losses
