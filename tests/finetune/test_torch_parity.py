"""Fine-tuning on packed rows against transformers' on padded ones: the same weights, the same
batches in the same order, dropout off."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from late_import import LateImport
from nightly import others_nightly
from parity_steps import difference
from small_task import task_config, write_task

from bert_jax.config.schema import Config
from bert_jax.convert import weights
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.finetune.batches import ExampleBatches
from bert_jax.finetune.task_data import open_task
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training.step import make_step_functions
from bert_jax.workdir.layout import Workdir

torch = LateImport("torch")
parity = LateImport("torch_parity", reason="needs transformers, too")

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def _highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


def padded_choices(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The examples of packed rows, in the order of their rows and slots, one in each row, and each
    of its sequences in a strip."""
    slots = np.argwhere(batch["choice_weights"] > 0).tolist()
    names, (C, S) = ("input_ids", "token_type_ids", "example_ids"), batch["input_ids"].shape[1:]
    out = {name: np.zeros((len(slots), C, S), np.int32) for name in names}
    for line, (row, slot) in enumerate(slots):
        for number in range(C):
            own = batch["example_ids"][row] == slot * C + number + 1
            for name in names:
                out[name][line, number, : own.sum()] = batch[name][row][own]
    out["example_ids"] = np.minimum(out["example_ids"], 1)
    return out | {
        "choices": np.stack([batch["choices"][row, slot] for row, slot in slots])[:, None]
    }


def padded(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The examples of packed rows, in the order of their rows and slots, one in each row."""
    if "choices" in batch:
        return padded_choices(batch)
    slots = np.argwhere(batch["label_weights"] > 0).tolist()
    own = [batch["example_ids"][row] == slot + 1 for row, slot in slots]
    shape = len(slots), max(int(tokens.sum()) for tokens in own)
    out = {
        name: np.zeros(shape, np.int32) for name in ("input_ids", "token_type_ids", "example_ids")
    }
    for line, ((row, _), tokens) in enumerate(zip(slots, own, strict=True)):
        for name in ("input_ids", "token_type_ids"):
            out[name][line, : tokens.sum()] = batch[name][row][tokens]
        out["example_ids"][line, : tokens.sum()] = 1
    return out | {"labels": np.stack([batch["labels"][row, slot] for row, slot in slots])[:, None]}


class Sides:
    """A run's programs on packed batches, and transformers' model with torch.optim.AdamW."""

    def __init__(self, config: Config) -> None:
        data = open_task(config, Workdir.open("/nowhere/run"))
        self.config = data.configured(config)
        (phase,) = self.config.phases
        self.mesh = make_mesh(config.mesh, jax.devices()[:1])
        found = data.phase(self.config, phase, self.mesh)
        self.train = found.train
        self.held_out = data._batches(data.held_out, self.config, phase, 0, 0, 1)
        with jax.set_mesh(self.mesh):
            self.program = make_step_functions(self.config, self.mesh, found.held_out.corpus)
            self.state = self.program.init()
        start = jax.tree.map(np.asarray, self.state["params"])
        self.model = parity.theirs_of(self.config.model, start)
        self.optimizer = self._adamw()

    def _adamw(self) -> Any:
        settings, trained = self.config.optimizer, list(self.model.named_parameters())
        groups = [
            {"params": [p for n, p in trained if ("LayerNorm" in n or "bias" in n) is not decays],
             "weight_decay": settings.weight_decay * decays}
            for decays in (True, False)
        ]  # fmt: skip
        betas = settings.b1, settings.b2
        return torch.optim.AdamW(groups, settings.learning_rate, betas, settings.eps)

    def step(self, number: int) -> tuple[float, float]:
        """Takes a step on both sides; returns the losses."""
        batch = self.train.batch(number)
        with jax.set_mesh(self.mesh):
            self.state, metrics = self.program.train(self.state, batch)
        self.model.zero_grad()
        loss, _ = parity.outputs_of(self.model, self.config.model, padded(batch))
        loss.backward()
        settings, total = self.config.optimizer, self.config.phases[0].steps
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        warming = number < settings.warmup_steps
        share = number / settings.warmup_steps if warming else 1 - number / total
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * share
        self.optimizer.step()
        return float(metrics["loss"]), loss.item()

    def logits(self, batches: ExampleBatches, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Both sides' logits [E, C] for the first batches."""
        ours, theirs = [], []
        for index in range(count):
            batch = batches.batch(index)
            with jax.set_mesh(self.mesh):
                (logits,) = self.program.evaluate(self.state["params"], batch)["outputs"].values()
            weights = batch.get("label_weights", batch.get("choice_weights"))
            of_examples = np.asarray(logits).reshape(*weights.shape, -1)
            ours.append(of_examples[weights > 0])
            with torch.no_grad():
                _, others = parity.outputs_of(self.model, self.config.model, padded(batch))
            theirs.append(others.numpy())
        return np.concatenate(ours), np.concatenate(theirs)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["classification", "regression", "multiple_choice"])
def test_packed_rows_compute_what_transformers_computes_on_padded_ones(
    tmp_path: Path, kind: str
) -> None:
    """With the usual epsilon Adam makes a whole step of a gradient that is rounding."""
    folder = write_task(tmp_path)
    lines = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()[1:]]
    rows = (f"{a}\t{b}\t{(len(a) - len(b)) / 9:.3f}\n" for _, a, b, _ in lines)
    (tmp_path / "scores.tsv").write_text("one\tother\tscore\n" + "".join(rows))
    changes = {"optimizer__eps": 1e-4, "model__initializer_range": 0.25}
    config = task_config(folder, task__warmup_share=0.0, **changes)
    if kind == "regression":
        names = {"name": kind, "text": "one", "pair": "other", "label": "score"}
        changes = {f"task.{key}": value for key, value in names.items()}
        config = config.replace(changes | {"task.data": str(tmp_path / "scores.tsv")})
    if kind == "multiple_choice":
        config = config.replace({"task.name": kind})
    sides = Sides(config)
    assert sides.train.batch(0)["example_ids"].max() > sides.train.sequences
    ours, theirs = sides.logits(sides.train, 3)
    assert difference(ours, theirs) <= 1e-5
    assert np.ptp(theirs, axis=0).max() > 0.1
    losses = np.transpose([sides.step(number) for number in range(3)])
    assert difference(*losses) <= 1e-5
    after = weights.to_transformers(sides.state["params"], sides.config.model)
    reference = sides.model.state_dict()
    found = {name: difference(own, reference[name]) for name, own in after.items()}
    assert not {name: difference for name, difference in found.items() if difference > 1e-5}
    assert len(found) == len(list(sides.model.parameters()))


def real_sides(real_data: Path, folder: Path, task: str) -> Sides:
    """An epoch of the first 10,000 examples of SST-2, or of as many acceptable as unacceptable ones
    of CoLA: of all, a small model learns that most are acceptable, and answers nothing else."""
    source, train = {
        "cola": (real_data / "glue/CoLA", "in_domain_train.tsv"),
        "sst2": (real_data / "glue/SST-2", "train.tsv"),
    }[task]
    lines = (source / train).read_text("utf-8").splitlines(keepends=True)[:10_001]
    if task == "cola":
        by_label = [[x for x in lines if x.split("\t")[1] == label] for label in "01"]
        lines = [line for pair in zip(*by_label, strict=False) for line in pair]
    Tokenizer.train(lines, 4096).save(folder / "tokenizer.json")
    for file in source.iterdir():
        text = "".join(lines) if file.name == train else file.read_text("utf-8")
        (folder / file.name).write_text(text, "utf-8")
    sizes = {"hidden_size": 128, "intermediate_size": 512, "max_position_embeddings": 128}
    phase = {"batch_size": 32, "examples_per_row": 32, "seq_length": 128}
    return Sides(
        task_config(
            folder,
            task__name=task,
            task__epochs=1.0,
            **{f"model__{key}": value for key, value in sizes.items()},
            **{f"phases[0]__{key}": value for key, value in phase.items()},
        )
    )


def dev_logits(sides: Sides) -> tuple[np.ndarray, np.ndarray]:
    """Both sides' logits for the held-out examples; asserts that each gives both answers."""
    ours, theirs = sides.logits(sides.held_out, sides.held_out.steps_per_epoch)
    for logits in (ours, theirs):
        assert len(np.unique(logits.argmax(1))) == 2
    return ours, theirs


@pytest.mark.torch
@pytest.mark.parametrize("task", others_nightly(["cola", "sst2"], keep=["cola"]))
def test_100_steps_of_real_examples_give_the_logits_of_pytorch(
    real_data: Path, tmp_path: Path, task: str
) -> None:
    sides = real_sides(real_data, tmp_path, task)
    for number in range(100):
        sides.step(number)
    ours, theirs = dev_logits(sides)
    assert np.abs(ours - theirs).max() <= 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("task", ["cola", "sst2"])
def test_an_epoch_of_real_examples_gives_the_answers_of_pytorch(
    real_data: Path, tmp_path: Path, task: str
) -> None:
    sides = real_sides(real_data, tmp_path, task)
    for number in range(sides.config.phases[0].steps):
        sides.step(number)
    for our_class, their_class in zip(*(logits.T for logits in dev_logits(sides)), strict=True):
        assert np.corrcoef(our_class, their_class)[0, 1] > 0.999
