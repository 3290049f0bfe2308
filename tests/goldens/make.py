"""Write the goldens of tests/training/test_parity.py with torch and transformers.

    cd tests && python -m goldens.make          # needs the [torch] extra; about a minute

The optimizers: `torch.optim.AdamW`, and a port of google-research/bert optimization.py (eedf571).
"""

import re
import sys
from collections.abc import Iterator

import golden_case as cases
import numpy as np
import torch
import transformers
from golden_case import CASES, FOLDER, RECIPES, STEPS, Case, Recipe

HIDDEN_ACT = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


def make_model(case: Case) -> transformers.BertForPreTraining:
    config = transformers.BertConfig(
        vocab_size=case.vocab_size,
        hidden_size=case.hidden_size,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=case.intermediate_size,
        max_position_embeddings=case.positions,
        hidden_act=HIDDEN_ACT[case.act],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=cases.PAD,
        attn_implementation="eager",
    )
    model = transformers.BertForPreTraining(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(cases.weight(name, tuple(parameter.shape))))
    return model.train()


def forward(model: transformers.BertForPreTraining, case: Case, step: int) -> dict:
    batch = {k: torch.from_numpy(v) for k, v in cases.batch(case, step).items()}
    labels = torch.full(batch["input_ids"].shape, -100)
    used = batch["masked_weights"] > 0
    rows = torch.arange(case.rows)[:, None].expand(used.shape)[used]
    labels[rows, batch["masked_positions"][used].long()] = batch["masked_labels"][used].long()
    out = model(
        input_ids=batch["input_ids"].long(),
        token_type_ids=batch["token_type_ids"].long(),
        attention_mask=(batch["example_ids"] > 0).long(),
        labels=labels,
        next_sentence_label=batch["pair_labels"][:, 0].long(),
        output_hidden_states=True,
    )
    vocabulary = out.prediction_logits.reshape(-1, case.vocab_size)
    loss = torch.nn.functional.cross_entropy
    mlm = loss(vocabulary, labels.reshape(-1))
    nsp = loss(out.seq_relationship_logits, batch["pair_labels"][:, 0].long())
    hidden = out.hidden_states[-1]
    kept = cases.kept_positions(case, batch["example_ids"].numpy())
    logits = out.prediction_logits[rows, batch["masked_positions"][used].long()]
    results = {
        "hidden": hidden[kept],
        "pooled": model.bert.pooler(hidden),
        "mlm_logits": logits[:, :: cases.VOCAB_STRIDE[case.name]],
        "mlm_logsumexp": torch.logsumexp(logits, -1),
        "nsp_logits": out.seq_relationship_logits,
        "mlm_loss": mlm,
        "nsp_loss": nsp,
        "loss": out.loss,
    }
    return {"total": out.loss} | {k: v.detach().numpy().copy() for k, v in results.items()}


def learning_rate(recipe: Recipe, peak: float, step: int) -> float:
    """optimization.py:29-54: polynomial decay of power 1, replaced during the warmup."""
    decayed = peak * (1 - min(step, recipe.total_steps) / recipe.total_steps)
    if recipe.warmup_steps and step < recipe.warmup_steps:
        return peak * step / recipe.warmup_steps
    return decayed


def uses_decay(name: str) -> bool:
    """optimization.py:65, 179-187."""
    return not any(re.search(r, name) for r in ("LayerNorm", "layer_norm", "bias"))


def bert_adamw(model: torch.nn.Module, recipe: Recipe, peak: float) -> Iterator[None]:
    """optimization.py:59-176: one step at each `next`."""
    named = list(model.named_parameters())
    m = {name: torch.zeros_like(p) for name, p in named}
    v = {name: torch.zeros_like(p) for name, p in named}
    for step in range(STEPS):
        yield
        with torch.no_grad():
            norm = torch.sqrt(sum(torch.sum(p.grad.double() ** 2) for _, p in named))
            scale = recipe.clip_norm / max(float(norm), recipe.clip_norm)
            for name, p in named:
                grad = p.grad * scale
                m[name] = recipe.b1 * m[name] + (1.0 - recipe.b1) * grad
                v[name] = recipe.b2 * v[name] + (1.0 - recipe.b2) * torch.square(grad)
                update = m[name] / (torch.sqrt(v[name]) + recipe.eps)
                if uses_decay(name):
                    update += recipe.weight_decay * p
                p -= learning_rate(recipe, peak, step) * update
    yield


def adamw(model: torch.nn.Module, recipe: Recipe, peak: float) -> Iterator[None]:
    groups = [
        {"params": [p for n, p in model.named_parameters() if uses_decay(n) == wanted],
         "weight_decay": recipe.weight_decay * wanted}
        for wanted in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, peak, (recipe.b1, recipe.b2), recipe.eps)
    for step in range(STEPS):
        yield
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, peak, step)
        optimizer.step()
    yield


def train(case: Case, recipe: Recipe) -> dict[str, np.ndarray]:
    """Samples and update norms of every tensor after the steps, and the loss of each step."""
    model = make_model(case)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    steps = {"bert_adamw": bert_adamw, "adamw": adamw}[recipe.name]
    optimizer = steps(model, recipe, case.learning_rate)
    losses, norms = [], []
    next(optimizer)
    for step in range(STEPS):
        model.zero_grad()
        loss = forward(model, case, step)["total"]
        loss.backward()
        losses.append(loss.item())
        squares = [torch.sum(p.grad.double() ** 2) for p in model.parameters()]
        norms.append(float(torch.sqrt(sum(squares))))
        next(optimizer)
    out = {"losses": np.float32(losses), "grad_norms": np.float32(norms)}
    for name, p in model.named_parameters():
        flat = p.detach().reshape(-1)
        out[f"after/{name}"] = flat[cases.sampled(name, flat.numel())].numpy()
        out[f"moved/{name}"] = np.float32(torch.norm(p.detach().double() - before[name].double()))
    return {f"{recipe.name}/{k}": v for k, v in out.items()}


def main(names: list[str]) -> None:
    torch.manual_seed(0)
    for name in names or list(CASES):
        case = CASES[name]
        model = make_model(case)
        out = forward(model, case, 0)
        out.pop("total")
        # Without the tied decoder, which is no parameter of its own.
        out["names"] = np.array([n for n, _ in model.named_parameters()])
        out["shapes"] = np.array([str(list(p.shape)) for _, p in model.named_parameters()])
        out["versions"] = np.array(
            [f"torch {torch.__version__}, transformers {transformers.__version__}"]
        )
        if name != "tiny_tanh":
            for recipe in RECIPES.values():
                out |= train(case, recipe)
        np.savez_compressed(FOLDER / f"{name}.npz", **out)
        print(
            name, (FOLDER / f"{name}.npz").stat().st_size, "bytes", out.get("bert_adamw/grad_norms")
        )


if __name__ == "__main__":
    main(sys.argv[1:])
