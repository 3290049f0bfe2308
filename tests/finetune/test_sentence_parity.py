"""In-batch negatives on packed rows against the same steps of PyTorch on padded texts."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from late_import import LateImport
from parity_steps import difference
from small_task import WORDS, task_config, write_task
from task_steps import batches_of

from bert_jax.config.task_model import without_head
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training.step import make_step_functions

torch = LateImport("torch")
transformers = LateImport("transformers")

pytestmark = pytest.mark.filterwarnings("default")
STEPS, TEXTS = 3, 3


def padded(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the texts of all examples and the mask of their tokens, [E, C, S]."""
    rows, strips = [], batch["input_ids"].reshape(len(batch["input_ids"]), -1)
    examples = batch["example_ids"].reshape(strips.shape)
    for row, slot in np.argwhere(batch["pair_weights"] > 0).tolist():
        places = range(slot * TEXTS + 1, slot * TEXTS + TEXTS + 1)
        rows.append([strips[row][examples[row] == place] for place in places])
    ids = np.zeros((len(rows), TEXTS, max(len(x) for row in rows for x in row)), np.int64)
    mask = np.zeros_like(ids)
    for example, texts in enumerate(rows):
        for number, text in enumerate(texts):
            ids[example, number, : len(text)] = text
            mask[example, number, : len(text)] = 1
    return ids, mask


def their_loss(model, ids: np.ndarray, mask: np.ndarray):
    """Mean pooling, and the loss of MultipleNegativesRankingLoss in both directions."""
    flat_ids, flat = (torch.from_numpy(x.reshape(-1, x.shape[-1])) for x in (ids, mask))
    states = model(input_ids=flat_ids, attention_mask=flat).last_hidden_state
    weights = flat[..., None].float()
    vectors = (states * weights).sum(1) / weights.sum(1)
    x = torch.nn.functional.normalize(vectors, dim=-1).reshape(*ids.shape[:2], -1)
    scores = 20 * x[:, 0] @ torch.cat(list(x[:, 1:].unbind(1))).T
    back, right = 20 * x[:, 1] @ x[:, 0].T, torch.arange(len(ids))
    each = (torch.nn.functional.cross_entropy(one, right) for one in (scores, back))
    return sum(each) / 2


@pytest.mark.torch
def test_three_steps_are_those_of_pytorch(tmp_path: Path) -> None:
    """Without equal texts, which sentence-transformers counts as negatives."""
    drawn, rows = np.random.default_rng(0), []
    write_task(tmp_path)
    for _ in range(40):
        first, *others = drawn.choice(WORDS, 12, replace=False).tolist()
        texts = ([first, *others[:4]], [first, *others[4:6]], others[6 : 6 + drawn.integers(1, 5)])
        rows.append("\t".join(map(" ".join, texts)))
    (tmp_path / "pairs.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n")
    config, batches = batches_of(
        task_config(
            tmp_path, task__name="sentence_pairs", task__data=str(tmp_path / "pairs.tsv"),
            task__directions="both", task__warmup_share=0.0, optimizer__eps=1e-4,
        )
    )  # fmt: skip
    mesh, encoder = make_mesh(config.mesh, jax.devices()[:1]), without_head(config.model)
    corpus = Corpus((), np.zeros(config.model.vocab_size, np.float32))
    with jax.default_matmul_precision("highest"), jax.set_mesh(mesh):
        program = make_step_functions(config, mesh, corpus)
        state = program.init()
        start = jax.tree.map(np.asarray, state["params"])
        values = json.loads(json.dumps(to_config_json(encoder, pad_token_id=0, heads=start)))
        settings = transformers.BertConfig(**values)
        model = transformers.BertModel(settings, add_pooling_layer=False).eval()
        theirs = weights.to_transformers(start, encoder)
        named = {n.removeprefix("bert."): torch.from_numpy(x) for n, x in theirs.items()}
        model.load_state_dict(named)
        recipe, trained = config.optimizer, list(model.named_parameters())
        groups = [
            {"params": [p for n, p in trained if ("LayerNorm" in n or "bias" in n) is not decays],
             "weight_decay": recipe.weight_decay * decays}
            for decays in (True, False)
        ]  # fmt: skip
        betas = recipe.b1, recipe.b2
        optimizer = torch.optim.AdamW(groups, recipe.learning_rate, betas, recipe.eps)
        losses = []
        for number in range(STEPS):
            batch = batches.batch(number)
            assert len(np.unique(batch["texts"])) == 1 + batch["pair_weights"].sum() * TEXTS
            state, metrics = program.train(state, batch)
            model.zero_grad()
            loss = their_loss(model, *padded(batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * (1 - number / config.phases[0].steps)
            optimizer.step()
            losses.append((float(metrics["loss"]), loss.item()))
    assert difference(*np.transpose(losses)) <= 1e-5
    after = weights.to_transformers(jax.tree.map(np.asarray, state["params"]), encoder)
    reference = model.state_dict()
    found = {n: difference(x, reference[n.removeprefix("bert.")]) for n, x in after.items()}
    assert max(found.values()) <= 1e-5, found
    moved = {n: difference(x, theirs[n]) for n, x in after.items()}
    assert max(moved.values()) > 1e-3
