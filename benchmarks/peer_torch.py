"""The peer of train_cpu.py and train_gpu.py: transformers' PyTorch model of BERT or ModernBERT.

Both sides start from the same parameters and use the same recipe: AdamW, constant learning rate.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LEARNING_RATE, WEIGHT_DECAY, EPS, CLIP_NORM = 1e-4, 0.01, 1e-8, 1.0
NO_LABEL = -100
# The class of each model type, and its tied parameters.
CLASSES = {
    "bert": (
        "BertForPreTraining",
        {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
    ),
    "modernbert": ("ModernBertForMaskedLM", {"decoder.weight"}),
}


def same_recipe(config: Any) -> Any:
    """Returns our config with the peer's recipe; one phase, so long that decay is negligible."""
    whole_run = {"learning_rate": None, "warmup_steps": None, "decay_share": None}
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, pad_vocab_to_multiple_of=1),
        phases=(dataclasses.replace(config.phases[0], steps=10**9, **whole_run),),
        optimizer=dataclasses.replace(
            config.optimizer,
            name="adamw",
            learning_rate=LEARNING_RATE,
            b2=0.999,
            schedule="bert",
            schedule_over="run",
            warmup_steps=0,
            weight_decay=WEIGHT_DECAY,
            eps=EPS,
            clip_norm=CLIP_NORM,
        ),
    )


def write_start(config: Any, pad_token_id: int, folder: Path) -> None:
    """Writes our initial parameters and their config for `load_model`."""
    import jax

    from bert_jax.convert.hf_config import to_config_json
    from bert_jax.convert.weights import to_transformers
    from bert_jax.objectives.known_objectives import chosen
    from bert_jax.objectives.pretraining_model import init_params

    key = jax.random.key(config.seed)
    params = init_params(config.model, config.compute, chosen(config.data), key)
    np.savez(folder / "parameters.npz", **to_transformers(params, config.model))
    description = to_config_json(config.model, pad_token_id=pad_token_id)
    (folder / "config.json").write_text(json.dumps(description))


def load_model(folder: Path) -> Any:
    """Loads those parameters into a model in training mode; attention is `sdpa`, the default."""
    import torch
    import transformers

    description = json.loads((folder / "config.json").read_text())
    config = transformers.AutoConfig.for_model(**description)
    class_name, tied = CLASSES[config.model_type]
    model = getattr(transformers, class_name)(config)
    with np.load(folder / "parameters.npz") as arrays:
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    wrong = model.load_state_dict(tensors, strict=False)
    if set(wrong.missing_keys) != tied or wrong.unexpected_keys:
        raise ValueError(f"parameters do not match {class_name}: {wrong}")
    model.tie_weights()
    model.train()
    return model


def make_optimizer(model: Any) -> Any:
    import torch

    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "norm" in n.lower()]
    others = [p for p in model.parameters() if not any(p is q for q in plain)]
    return torch.optim.AdamW(
        [{"params": others}, {"params": plain, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        eps=EPS,
        weight_decay=WEIGHT_DECAY,
        fused=True,  # as in transformers' Trainer
    )


def inputs_of(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Converts one of our batches to the inputs that the class documents: labels at every position,
    NO_LABEL where no token is masked."""
    import torch

    labels = torch.full(batch["input_ids"].shape, NO_LABEL)
    row, slot = batch["masked_weights"].nonzero(as_tuple=True)
    labels[row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot].long()
    if model.config.model_type == "modernbert":
        return {**packed_inputs(model.config, batch), "labels": labels}
    return {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "attention_mask": (batch["example_ids"] > 0).long(),
        "labels": labels,
        "next_sentence_label": batch["pair_labels"][:, 0].long(),
    }


def packed_inputs(config: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Returns the inputs of ModernBERT, each example by itself: its masks of both kinds of layer,
    [B, 1, S, S], and its positions."""
    import torch

    ids, at = batch["example_ids"], torch.arange(batch["input_ids"].shape[1])
    same = ids[:, None, :, None] == ids[:, None, None, :]  # padding sees padding: no empty row
    near = (at[:, None] - at[None, :]).abs() <= config.local_attention // 2
    return {
        "input_ids": batch["input_ids"],
        "position_ids": batch["position_ids"],
        "attention_mask": {"full_attention": same, "sliding_attention": same & near},
    }


def masked_loss(model: Any, batch: dict[str, Any]) -> Any:
    """Returns the same loss, with the head applied at the masked positions only."""
    import torch

    if model.config.model_type == "modernbert":
        model.sparse_prediction = True
        return model(**inputs_of(model, batch)).loss
    words, pairs = _losses(model, batch, torch.nn.functional.cross_entropy)
    return words + pairs


def word_losses(model: Any, batch: dict[str, Any]) -> Any:
    """Returns the loss of each masked token of a batch."""
    import torch

    each = functools.partial(torch.nn.functional.cross_entropy, reduction="none")
    return _losses(model, batch, each)[0]


def _losses(model: Any, batch: dict[str, Any], cross_entropy: Callable[..., Any]) -> tuple:
    """Returns the losses of masked tokens and of sentence pairs."""
    hidden, pooled = model.bert(
        input_ids=batch["input_ids"],
        token_type_ids=batch["token_type_ids"],
        attention_mask=(batch["example_ids"] > 0).long(),
    )[:2]
    row, slot = batch["masked_weights"].nonzero(as_tuple=True)
    words, pairs = model.cls(hidden[row, batch["masked_positions"][row, slot].long()], pooled)
    return (
        cross_entropy(words, batch["masked_labels"][row, slot].long()),
        cross_entropy(pairs, batch["pair_labels"][:, 0].long()),
    )
