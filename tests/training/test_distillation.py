"""`config.teacher`: a run learns from the predictions and the last states of another model."""

import dataclasses
import functools
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import small_store
from exported import random_params
from flax import nnx
from golden_case import CASES
from late_import import LateImport
from layout_models import layout_config
from nightly import others_nightly
from small import COMPUTE
from small_step import ALL_AT_ONCE, PACKED, small
from split_steps import Trained, assert_same, train
from students import config_of, exported, teacher_in

from bert_jax.aot.lower import teacher_of
from bert_jax.config.config_files import load
from bert_jax.config.defaults import ARCHITECTURE
from bert_jax.config.distillation_settings import DistillationConfig
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.sources import ReadModel
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.distillation import distillation_sums, taught
from bert_jax.objectives.pretraining_model import declare, init_params
from bert_jax.objectives.total import denominators
from bert_jax.training import loop
from bert_jax.training import teacher as teacher_module
from bert_jax.training.store_data import open_data
from bert_jax.training.teacher import Teacher, find_teacher, for_evaluation, start_as

torch = LateImport("torch")
parity = LateImport("torch_parity", reason="needs transformers, too")
MLM = ("mlm",)


SETTINGS = {
    "as published": {},
    "masked positions": {"positions": "masked", "temperature": 1.5},
    "without cosine": {"cosine_weight": 0.0, "mlm_weight": 0.0},
}
STUDENTS: dict[str, dict[str, Any]] = {
    "distilbert": {"num_hidden_layers": 2},
    "bert": {"hidden_size": 16, "num_attention_heads": 2},  # the teacher is 32 wide
}


def our_loss(
    student: ModelConfig, params: Any, teacher: ModelConfig, frozen: Any, batch: dict, settings: Any
) -> tuple[jax.Array, Any, dict]:
    """The loss, its gradients and its sums."""
    graphs = [declare(model, COMPUTE, MLM)[0] for model in (student, teacher)]
    corpus = Corpus(("text",), np.log(np.arange(1, 100) / 4950).astype(np.float32))
    arrays = {name: jnp.asarray(x) for name, x in batch.items()}
    counts = denominators(arrays, MLM) | {"distillation": taught(arrays, settings).sum()}

    def loss(params: Any) -> tuple:
        return distillation_sums(
            nnx.merge(graphs[0], params), nnx.merge(graphs[1], frozen), arrays,
            jnp.uint32(0), corpus, counts, settings, 1,
        )  # fmt: skip

    with jax.default_matmul_precision("highest"):
        (value, sums), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    return value, gradients, sums


@pytest.mark.torch
@pytest.mark.parametrize(
    ("layout", "changes"),
    others_nightly(
        itertools.product(STUDENTS, SETTINGS),
        keep=[("distilbert", "as published"), ("bert", "masked positions")],
    ),
)
def test_a_step_is_that_of_pytorch(layout: str, changes: str) -> None:
    """Loss and gradients of a student in transformers, from all logits of both models."""
    settings = DistillationConfig(**SETTINGS[changes])
    teacher = layout_config("bert")
    student = layout_config(layout, **STUDENTS[layout])
    projected = student.hidden_size != teacher.hidden_size and settings.cosine_weight
    ours = dataclasses.replace(student, teacher_width=32 if projected else 0)
    params, frozen = random_params(student, MLM), random_params(teacher, MLM)
    rng = np.random.default_rng(0)
    if projected:
        shapes = declare(ours, COMPUTE, MLM)[1]
        dense = nnx.to_pure_dict(shapes)["teacher_projection"]
        params["teacher_projection"] = jax.tree.map(
            lambda x: rng.normal(size=x.shape).astype(np.float32), dense
        )
    batch = cases.batch(CASES["tiny"], 0)
    loss, gradients, sums = our_loss(ours, params, teacher, frozen, batch, settings)

    theirs, their_teacher = parity.theirs_of(student, params), parity.theirs_of(teacher, frozen)
    real = torch.from_numpy(batch["example_ids"] > 0)
    rows, slots = np.nonzero(batch["masked_weights"])
    places = rows, batch["masked_positions"][rows, slots]
    masked = torch.zeros_like(real)
    masked[places] = True
    where = masked if settings.positions == "masked" else real
    own = theirs(**parity.inputs_of(student, batch), output_hidden_states=True)
    with torch.no_grad():
        inputs = parity.inputs_of(teacher, batch)
        wanted = their_teacher(**inputs, output_hidden_states=True)
    T, F = settings.temperature, torch.nn.functional
    labels = torch.from_numpy(batch["masked_labels"][rows, slots]).long()
    total = settings.mlm_weight * F.cross_entropy(own.logits[places], labels)
    soft = F.log_softmax(own.logits[where] / T, -1), F.softmax(wanted.logits[where] / T, -1)
    total = total + settings.kl_weight * T**2 * F.kl_div(*soft, reduction="batchmean")
    if settings.cosine_weight:
        states = own.hidden_states[-1][where]
        if projected:
            dense = {k: torch.from_numpy(x) for k, x in params["teacher_projection"].items()}
            states = states @ dense["kernel"] + dense["bias"]
        cosine = F.cosine_similarity(states, wanted.hidden_states[-1][where], dim=-1)
        total = total + settings.cosine_weight * (1 - cosine).mean()
        np.testing.assert_allclose(sums["distillation"]["cosine"], cosine.sum().item(), rtol=1e-5)
    total.backward()

    np.testing.assert_allclose(loss, total.item(), rtol=1e-6)
    named = weights.to_transformers(gradients, student)
    for name, parameter in theirs.named_parameters():
        if name in named:
            wanted = parameter.grad.numpy()
            scale = max(1.0, np.abs(wanted).max())
            np.testing.assert_allclose(named[name], wanted, atol=1e-5 * scale, err_msg=name)
    agreed = (own.logits[where].argmax(-1) == wanted_first(their_teacher, inputs, where)).sum()
    assert sums["distillation"]["agreement"] == agreed.item()


def wanted_first(teacher: Any, inputs: dict, where: Any) -> Any:
    with torch.no_grad():
        return teacher(**inputs).logits[where].argmax(-1)


TEACHER = dataclasses.replace(small("mlm").model, num_hidden_layers=3, hidden_size=48)


@functools.cache
def teacher_params() -> dict:
    return jax.tree.map(np.asarray, init_params(TEACHER, COMPUTE, MLM, jax.random.key(7)))


def taught_steps(changes: dict[str, Any], before: Any = None) -> Trained:
    model = {"teacher_width": 48, **changes.get("model", {})}
    config = small("mlm", **{**changes, "model": model})
    return train(config, before, teacher=(TEACHER, teacher_params()))


SPLITS: dict[str, dict[str, Any]] = {
    "everything": ALL_AT_ONCE,
    "data8": {"mesh": {"data": 8}},
    "fsdp8": {"mesh": {"data": 1, "fsdp": 8}},
    "tensor4": {"mesh": {"data": 2, "tensor": 4}},
    "accumulated": {"phase": {"micro_batches": 4}},
    "packed": {"phase": PACKED},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", others_nightly(SPLITS, keep=["everything"]))
def test_the_same_numbers_however_the_step_is_split(name: str) -> None:
    one = taught_steps({})
    assert_same(one, taught_steps(SPLITS[name], one.before))


OTHERS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "one token type": ({"type_vocab_size": 1}, "mlm+sop", {}),
    "no token types": ({"type_vocab_size": 0}, "mlm+nsp", {}),
    "learned positions": (
        {"position": "learned"}, "mlm",
        {"model": {"position": "rotary"}, "phase": {"global_rope_theta": 160_000.0}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_teacher_has_another_form_than_its_student(name: str) -> None:
    """What a student's text and phases need, its teacher need not have."""
    form, learned, changes = OTHERS[name]
    model = {"teacher_width": 48, **changes.get("model", {})}
    config = small(learned, **{**changes, "model": model})
    teacher = dataclasses.replace(TEACHER, **form)
    params = jax.tree.map(np.asarray, init_params(teacher, COMPUTE, MLM, jax.random.key(7)))
    losses = train(config, steps=2, teacher=(teacher, params)).losses
    assert losses[1] < losses[0]
    if teacher.type_vocab_size == 1:  # all tokens have it
        tables = params["encoder"]["embeddings"]
        tables["position"] = tables["position"] + tables.pop("type")
        without = dataclasses.replace(teacher, type_vocab_size=0)
        same = train(config, steps=2, teacher=(without, params)).losses
        np.testing.assert_allclose(same, losses, rtol=1e-5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("distillation") / "store")


@pytest.fixture(scope="module")
def source(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, `run`, and its export, `folder`."""
    return teacher_in(tmp_path_factory.mktemp("teacher"), store)


COPIED = {
    "distillation__teacher_layers": "1",
    "model__num_hidden_layers": 1,
    "model__layout": "distilbert",
    "model__type_vocab_size": 0,
    "checkpoint__keep_start": True,
}


def test_a_student_starts_as_its_teacher_and_comes_to_agree_with_it(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = config_of(store, teacher=f"{source}/run@4", **COPIED)
    loop.pretrain(config, tmp_path / "run")
    said, out = f"starts as layers 1, embeddings and head of {source}/run@4\n", capsys.readouterr()
    assert said in out.out
    assert re.search(r"step 4/4  loss \S+  mlm \S+  kl \S+  agreement 0\.\d+  ", out.out)
    start, theirs = exported(tmp_path / "run", 0), exported(source / "run", 4)
    pairs = {
        "distilbert.embeddings.word_embeddings.weight": "bert.embeddings.word_embeddings.weight",
        "distilbert.transformer.layer.0.ffn.lin1.weight": (
            "bert.encoder.layer.1.intermediate.dense.weight"
        ),
        "vocab_transform.weight": "cls.predictions.transform.dense.weight",
    }
    for ours, other in pairs.items():
        np.testing.assert_array_equal(start[ours], theirs[other])
    card = (tmp_path / "run_0_exported" / "README.md").read_text()
    assert "taught by run (5 · KL at temperature 2, 2 · masked tokens, 1 · cosine)" in card
    (first, last) = records(tmp_path / "run")
    assert {"kl", "baseline_kl", "agreement", "baseline_agreement", "cosine"} <= {
        key.removeprefix("distillation/") for key in last if key.startswith("distillation/")
    }
    assert last["distillation/kl"] < last["distillation/baseline_kl"]
    assert first["mlm/loss"] > 0


def test_a_layer_of_a_teacher_that_shares_them_is_that_of_its_group(store: TokenStore) -> None:
    shared = layout_config("albert", num_hidden_layers=4, num_hidden_groups=2)
    params = init_params(shared, COMPUTE, MLM, jax.random.key(0))
    teacher = Teacher(shared, jax.tree.map(np.asarray, params), "")
    student = dataclasses.replace(shared, num_hidden_layers=3, num_hidden_groups=0)
    given = {"params": init_params(student, COMPUTE, MLM, jax.random.key(1))}
    layers = {"model__num_hidden_layers": 3, "distillation__teacher_layers": "1,2,3"}
    state = start_as(given, teacher, config_of(store, **layers))
    for ours, theirs in zip(
        *(jax.tree.leaves(x["encoder"]["layers"]) for x in (state["params"], params)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs[np.array([0, 1, 1])])


def records(run: Path) -> list[dict[str, Any]]:
    from runs import read_records

    return read_records(run, "train")


def test_a_teacher_is_the_same_one_in_a_run_an_export_and_with_rows_that_no_token_has(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    """As released ModernBERT, whose tables have 50,368 rows for 50,280 entries."""
    import safetensors.numpy

    padded = tmp_path / "padded"
    padded.mkdir()
    for file in ("config.json", "tokenizer.json"):
        shutil.copyfile(source / "folder" / file, padded / file)
    values = json.loads((padded / "config.json").read_text())
    entries, values["vocab_size"] = values["vocab_size"], values["vocab_size"] + 70
    (padded / "config.json").write_text(json.dumps(values))
    tensors = safetensors.numpy.load_file(source / "folder" / "model.safetensors")
    grown = {
        name: np.pad(x, [(0, 70), *[(0, 0)] * (x.ndim - 1)], constant_values=50)
        if x.shape[:1] == (entries,)
        else x
        for name, x in tensors.items()
    }
    safetensors.numpy.save_file(grown, padded / "model.safetensors", {"format": "pt"})
    config = config_of(store)
    data = open_data(config)
    found = [
        find_teacher(config.replace("teacher", f"{where}"), data)
        for where in (f"{source}/run@4", source / "folder", padded)
    ]
    assert len({one.digest for one in found if one}) == 1
    for one in found:
        assert one
        assert one.model.vocab_size == config.model.vocab_size
        jax.tree.map(np.testing.assert_array_equal, one.params, found[0] and found[0].params)


def test_a_position_that_is_drawn_twice_counts_twice_at_all_positions() -> None:
    model = layout_config("bert")
    params = random_params(model, MLM)
    batch = {name: np.array(x) for name, x in cases.batch(CASES["tiny"], 0).items()}
    for name in ("masked_positions", "masked_labels", "masked_weights"):
        batch[name][:, 1] = batch[name][:, 0]
    found = [
        our_loss(model, params, model, params, batch, DistillationConfig(positions=where))[2]["mlm"]
        for where in ("all", "masked")
    ]
    for name, value in found[0].items():
        np.testing.assert_allclose(value, found[1][name], rtol=1e-5, err_msg=name)


def test_layers_of_a_teacher_whose_first_one_has_no_norm_stay_in_its_place(
    store: TokenStore, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modern = layout_config("modernbert", num_hidden_layers=3)
    params = random_params(modern, MLM)
    monkeypatch.setattr(
        teacher_module, "read_model",
        lambda name: ReadModel(name, params, modern, open_data(config_of(store)).tokenizer),
    )  # fmt: skip
    names = [name for name in ARCHITECTURE if name != "num_hidden_layers"]
    own = {f"model__{name}": getattr(modern, name) for name in names}
    config = config_of(store, **own, model__num_hidden_layers=2, teacher=str(source / "folder"))
    data = open_data(config)
    assert find_teacher(config.replace("distillation.teacher_layers", "0,2"), data)
    for layers in ("1,2", "1,0", "0,0"):
        with pytest.raises(UserError, match="only the student's first layer may lack"):
            find_teacher(config.replace("distillation.teacher_layers", layers), data)
    narrow = config.replace(
        {"distillation.teacher_layers": "0,2", "model.local_attention": 2 * modern.local_attention}
    )
    wanted = f"set --config.model.local_attention={modern.local_attention}, or"
    with pytest.raises(UserError, match=wanted):
        find_teacher(narrow, data)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"teacher": "{}/none"}, "config.teacher={}/none: no such folder"),
        ({"teacher": "hf:a/b/c"}, "hf:a/b/c: not a model's name"),
        ({"teacher": "{}/run"}, "a run, whose newest step may change; give one: .*/run@STEP"),
        ({"teacher": "{}/run@3"}, "3"),
        (
            {"teacher": "{}/folder", "distillation__teacher_layers": "0,2"},
            'it has layers 0 to 1, but config.distillation.teacher_layers="0,2" copies 2',
        ),
        (
            {"teacher": "{}/folder", "distillation__teacher_layers": "0,1",
             "model__intermediate_size": 128, "model__num_attention_heads": 4},
            "layers of another form .*set --config.model.num_attention_heads=2 "
            "--config.model.intermediate_size=64, or",
        ),
        (
            {"teacher": "{}/folder", "distillation__teacher_layers": "0,1",
             "model__max_position_embeddings": 64},
            "set --config.model.max_position_embeddings=32, or",
        ),
        ({"distillation__teacher_layers": "0,1"}, "teacher_layers needs a model; set config.teach"),
        ({"distillation__temperature": 3.0}, "temperature needs a model; set config.teacher"),
        ({"model__teacher_width": 64}, "teacher_width=64: follows from config.teacher; leave"),
        (
            {"teacher": "{}/folder", "distillation__teacher_layers": "0,1",
             "model__layer_norm_eps": 1e-5},
            "set --config.model.layer_norm_eps=1e-12, or",
        ),
        ({"teacher": "{}/folder", "data__replaced_tokens": True}, "this run learns mlm,rtd; chang"),
        ({"teacher": "{}/folder", "data__pairing": "sop", "model__type_vocab_size": 2,
          "objectives": "sop"}, "this run learns sop; change config.objectives"),
        (
            {"teacher": "{}/folder", "model__max_position_embeddings": 64,
             "phases[0].seq_length": 64},
            "it has 32 positions, but a phase has seq_length=64",
        ),
    ],
)  # fmt: skip
def test_a_teacher_that_does_not_fit_is_one_line(
    changes: dict, says: str, store: TokenStore, source: Path, tmp_path: Path
) -> None:
    filled = {k: v.format(source) if isinstance(v, str) else v for k, v in changes.items()}
    with pytest.raises(UserError, match=says.format(source)) as error:
        loop.pretrain(config_of(store, **filled), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_teacher_of_another_vocabulary_is_one_line(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    other = small_store(tmp_path / "other", words="v")
    differ = "entry 5 of the model's vocabulary is 'w0', that of the store is 'v0'; build the store"
    with pytest.raises(UserError, match=differ):
        loop.pretrain(config_of(other, teacher=str(source / "folder")), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"teacher_layers": "0,x"}, "'x' is no number of a layer"),
        ({"teacher_layers": "0,,1"}, "'' is no number of a layer"),
        ({"teacher_layers": "0"}, "names 1, but config.model.num_hidden_layers=2"),
        ({"kl_weight": 0, "cosine_weight": 0}, "nothing is learned from the teacher"),
        ({"temperature": 0}, "temperature=0"),
        ({"positions": "some"}, "positions='some'"),
    ],
)
def test_wrong_settings_are_one_line(changes: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load("tiny").replace({f"distillation.{key}": value for key, value in changes.items()})


def test_a_described_step_has_the_teacher_that_the_config_names(source: Path) -> None:
    long = load("tiny").replace("teacher", str(source / "folder"))
    config = long.replace({"phases[0].seq_length": 32, "phases[0].max_predictions": 5})
    found = teacher_of(config)
    assert found
    assert (found.hidden_size, found.num_hidden_layers) == (32, 2)
    assert for_evaluation(found, config.model).hidden_dropout_prob == 0
    assert teacher_of(load("tiny")) is None
    wrong = {
        "folder: it has 32 positions, but a phase has seq_length": long,
        'layers 0 to 1, but config.distillation.teacher_layers="0,7" copies 7': config.replace(
            "distillation.teacher_layers", "0,7"
        ),
        "run: a run, whose newest step may change; give one": config.replace(
            "teacher", f"{source}/run"
        ),
    }
    for says, one in wrong.items():
        with pytest.raises(UserError, match=says):
            teacher_of(one)
