"""In-batch negatives on packed rows against the same steps of PyTorch on padded texts, and against
those of sentence-transformers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import sentence_library as library
from late_import import LateImport
from parity_steps import difference
from small_task import WORDS, task_config, write_task
from task_steps import batches_of

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.sentence_parts import Dense
from bert_jax.config.task_model import without_head
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json
from bert_jax.convert.run_encoder import dense_layers, encoder_of_run
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel.mesh import make_mesh
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
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


def dense_of(parts: Sequence[Dense], values: Mapping[str, np.ndarray]) -> Any:
    """Dense layers of sentence-transformers, written again, with these values."""

    class Layer(torch.nn.Module):
        def __init__(self, part: Dense):
            super().__init__()
            sizes = part.width_before, part.width
            self.linear = torch.nn.Linear(*sizes, bias=part.bias)
            self.activation = getattr(torch.nn, part.activation)()
            self.adds = part.residual
            self.residual = torch.nn.Identity()
            if part.residual and part.width != part.width_before:
                self.residual = torch.nn.Linear(*sizes, bias=False)

        def forward(self, x):
            y = self.activation(self.linear(x))
            return y + self.residual(x) if self.adds else y

    layers = torch.nn.Sequential(*map(Layer, parts))
    layers.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    return layers


def their_loss(model, dense, ids: np.ndarray, mask: np.ndarray):
    """Mean pooling, dense layers, and the loss of MultipleNegativesRankingLoss both ways."""
    flat_ids, flat = (torch.from_numpy(x.reshape(-1, x.shape[-1])) for x in (ids, mask))
    states = model(input_ids=flat_ids, attention_mask=flat).last_hidden_state
    weights = flat[..., None].float()
    vectors = dense((states * weights).sum(1) / weights.sum(1))
    x = torch.nn.functional.normalize(vectors, dim=-1).reshape(*ids.shape[:2], -1)
    scores = 20 * x[:, 0] @ torch.cat(list(x[:, 1:].unbind(1))).T
    back, right = 20 * x[:, 1] @ x[:, 0].T, torch.arange(len(ids))
    each = (torch.nn.functional.cross_entropy(one, right) for one in (scores, back))
    return sum(each) / 2


class Trained(NamedTuple):
    """Our steps; parameters before and after them by their names in transformers, those of dense
    layers by names that begin with their numbers."""

    config: Config
    encoder: ModelConfig
    params: Mapping[str, Any]  # before them
    batches: list[dict[str, np.ndarray]]
    losses: list[float]
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]

    @property
    def layers(self) -> tuple[Dense, ...]:
        """The dense layers."""
        sentence = encoder_of_run(self.config)
        assert sentence
        return dense_layers(sentence)[0]

    @property
    def rates(self) -> list[float]:
        """The learning rates of the steps."""
        peak, steps = self.config.optimizer.learning_rate, self.config.phases[0].steps
        return [peak * (1 - number / steps) for number in range(STEPS)]


def named_values(config: Config, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All parameters, as `Trained` names them."""
    sentence = encoder_of_run(config, params)
    assert sentence
    found = weights.to_transformers({"encoder": params["encoder"]}, without_head(config.model))
    for number, layer in enumerate(dense_layers(sentence)[1]):
        found |= {f"{number}.{name}": value for name, value in layer.items()}
    return found


def our_steps(folder: Path, **changes: object) -> Trained:
    """Steps on pairs without equal texts, which sentence-transformers counts as negatives."""
    drawn, rows = np.random.default_rng(0), []
    write_task(folder)
    for _ in range(40):
        first, *others = drawn.choice(WORDS, 12, replace=False).tolist()
        texts = ([first, *others[:4]], [first, *others[4:6]], others[6 : 6 + drawn.integers(1, 5)])
        rows.append("\t".join(map(" ".join, texts)))
    (folder / "pairs.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n")
    config, source = batches_of(
        task_config(
            folder, task__name="sentence_pairs", task__data=str(folder / "pairs.tsv"),
            task__warmup_share=0.0, optimizer__eps=1e-4, **changes,
        )
    )  # fmt: skip
    mesh, encoder = make_mesh(config.mesh, jax.devices()[:1]), without_head(config.model)
    corpus = Corpus((), np.zeros(config.model.vocab_size, np.float32))
    batches, losses = [source.batch(number) for number in range(STEPS)], []
    with jax.default_matmul_precision("highest"), jax.set_mesh(mesh):
        program = make_step_functions(config, mesh, corpus)
        state = program.init()
        params = jax.tree.map(np.asarray, state["params"])
        before = named_values(config, params)
        for batch in batches:
            assert len(np.unique(batch["texts"])) == 1 + batch["pair_weights"].sum() * TEXTS
            state, metrics = program.train(state, batch)
            losses.append(float(metrics["loss"]))
    after = named_values(config, jax.tree.map(np.asarray, state["params"]))
    return Trained(config, encoder, params, batches, losses, before, after)


@pytest.mark.torch
@pytest.mark.parametrize("dense", ["", "24,8:Identity:no_bias:residual"])
def test_three_steps_are_those_of_pytorch(tmp_path: Path, dense: str) -> None:
    ours = our_steps(tmp_path, task__directions="both", task__dense=dense)
    values = to_config_json(ours.encoder, pad_token_id=0, heads=("encoder",))
    settings = transformers.BertConfig(**json.loads(json.dumps(values)))
    model = transformers.BertModel(settings, add_pooling_layer=False).eval()
    named = {n.removeprefix("bert."): torch.from_numpy(x) for n, x in ours.before.items()}
    model.load_state_dict({n: x for n, x in named.items() if not n[0].isdecimal()})
    added = {n: x for n, x in ours.before.items() if n[0].isdecimal()}
    layers = dense_of(ours.layers, added)
    both = torch.nn.ModuleList([model, layers])
    recipe, trained = ours.config.optimizer, list(both.named_parameters())
    groups = [
        {"params": [p for n, p in trained if ("LayerNorm" in n or "bias" in n) is not decays],
         "weight_decay": recipe.weight_decay * decays}
        for decays in (True, False)
    ]  # fmt: skip
    betas = recipe.b1, recipe.b2
    optimizer = torch.optim.AdamW(groups, recipe.learning_rate, betas, recipe.eps)
    losses = []
    for batch, rate in zip(ours.batches, ours.rates, strict=True):
        both.zero_grad()
        loss = their_loss(model, layers, *padded(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(both.parameters(), recipe.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    assert difference(ours.losses, losses) <= 1e-5
    reference = model.state_dict() | layers.state_dict()
    found = {n: difference(x, reference[n.removeprefix("bert.")]) for n, x in ours.after.items()}
    assert max(found.values()) <= 1e-5, found
    moved = {n: difference(x, ours.before[n]) for n, x in ours.after.items()}
    assert max(moved.values()) > 1e-3
    assert min([moved[n] for n in added], default=1) > 1e-4


@pytest.mark.nightly
@pytest.mark.processes
@library.WITH_EACH_RELEASE
@pytest.mark.parametrize(
    ("pooling", "dense"),
    [
        ("mean", ""),
        ("cls,mean_sqrt_len_tokens,weightedmean,lasttoken", ""),
        ("mean", "24,8:Identity:no_bias"),
    ],
)
def test_three_steps_are_those_of_sentence_transformers(
    packages: str, tmp_path: Path, pooling: str, dense: str
) -> None:
    """A folder of the first parameters, trained there with its loss."""
    changes = {"task__pooling": pooling, "optimizer__learning_rate": 1e-2, "task__dense": dense}
    ours = our_steps(tmp_path / "task", **changes)
    tokenizer = Tokenizer.load(tmp_path / "task/tokenizer.json")
    export(
        {"encoder": ours.params["encoder"]}, ours.encoder, tokenizer, tmp_path / "start",
        card=Card(origin="x"), sentence=encoder_of_run(ours.config, ours.params),
    )  # fmt: skip
    recipe = ours.config.optimizer
    adamw = {"betas": (recipe.b1, recipe.b2), "eps": recipe.eps}
    request = {
        "do": "train", "folder": tmp_path / "start",
        "batches": [texts_of(batch, tokenizer) for batch in ours.batches], "rates": ours.rates,
        "adamw": {**adamw, "weight_decay": recipe.weight_decay}, "clip_norm": recipe.clip_norm,
        "loss": "MultipleNegativesRankingLoss",
    }  # fmt: skip
    ((theirs, _),) = library.ask(packages, tmp_path / "asked", [request])
    np.testing.assert_allclose(ours.losses, theirs["losses"], rtol=1e-5)
    difference_, movement = 0.0, 0.0
    for name, after in ours.after.items():
        reference = theirs[name.removeprefix("bert.")]
        difference_ += float(np.square(np.float64(after) - reference).sum())
        movement += float(np.square(np.float64(reference) - ours.before[name]).sum())
    assert np.sqrt(movement) > 0.1
    assert np.sqrt(difference_ / movement) <= 1e-5


def texts_of(batch: dict[str, np.ndarray], tokenizer: Tokenizer) -> list[list[str]]:
    """The columns of texts of a batch."""
    ids, mask = padded(batch)
    return [
        [
            " ".join(tokenizer.token(i) for i in row[keep][1:-1])
            for row, keep in zip(ids[:, c], mask[:, c].astype(bool), strict=True)
        ]
        for c in range(TEXTS)
    ]
