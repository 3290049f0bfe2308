"""TSDAE: sentences of a token store, restored from the vector of what is left of them."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from corpus import small_config, small_store
from flax import nnx
from late_import import LateImport
from layout_models import LAYOUTS
from parity_steps import difference
from runs import read_meta
from safetensors.numpy import load_file
from small_task import task_config, write_search
from task_steps import SGD, batches_of, trained

import bert_jax
from bert_jax.api.run_search import RunSearch
from bert_jax.api.vector_evaluation import evaluate_retrieval, load_model
from bert_jax.config.schema import Config
from bert_jax.config.task_model import without_head
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError, UserError
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.predict_file import predict
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.tasks.denoising import kept_ids
from bert_jax.metrics.run_records import read_records
from bert_jax.objectives import total
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare, init_params
from bert_jax.publish.export import run_export
from bert_jax.training import loop
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir

torch = LateImport("torch")
transformers = LateImport("transformers")

MODEL = {
    "model__vocab_size": 100, "model__max_position_embeddings": 32,
    "model__pad_vocab_to_multiple_of": 64, "model__num_attention_heads": 2,
    "phases[0]__seq_length": 16,
}  # fmt: skip
USUAL = {key.replace(".", "__"): value for key, value in SGD.items()}
PADDED = {"phases[0]__examples_per_row": 1}
FORMS = {
    "2 devices, micro-batches": {"mesh__data": 2, "phases[0]__micro_batches": 2},
    "padded on 8 devices": {"mesh__data": 8} | PADDED,
    "a mesh of all kinds": {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("denoising") / "store")


def denoising_config(store: TokenStore, **changes: Any) -> Config:
    settings = {"task__name": "denoising", "task__data": str(store.path)}
    tokenizer = {"task__tokenizer": str(store.tokenizer_path)}
    return task_config(Path(store.path), **{**settings, **tokenizer, **MODEL, **changes})


def test_tokens_are_deleted_at_random_and_one_always_stays() -> None:
    ids = np.arange(100, 1102, dtype=np.int32)
    left = kept_ids(0.6, np.uint64(7), ids)
    count = int((left >= 0).sum())
    assert 325 < count < 475  # five standard deviations
    assert {100, 1101} <= {*left[:count].tolist()}
    assert (np.diff(left[:count]) > 0).all()
    assert (left[count:] == -1).all()
    assert (left != kept_ids(0.6, np.uint64(8), ids)).any()
    few = [kept_ids(0.999, np.uint64(key), ids[:6]) for key in range(200)]
    assert {int((one >= 0).sum()) for one in few} == {3}
    assert {int(one[1]) for one in few} == {101, 102, 103, 104}


def test_deletions_depend_on_the_seed_the_epoch_and_the_sentence(store: TokenStore) -> None:
    """Not on the row or on the place in it."""
    found = []
    for changes in ({}, PADDED, {"seed": 1}):
        _, batches = batches_of(denoising_config(store, **changes))
        own: dict[tuple[int, int], list[int]] = {}
        for step in (*range(3), batches.steps_per_epoch):
            batch, epoch = batches.batch(step), step // batches.steps_per_epoch
            places = batches.places(epoch, step % batches.steps_per_epoch)
            for row, examples in enumerate(places):
                for slot, example in enumerate(examples):
                    is_own = batch["example_ids"][row] == slot + 1
                    own[epoch, example] = batch["kept_ids"][row][is_own].tolist()
        found.append(own)
    packed, padded, other = found
    assert packed == padded
    both = [key for key in packed if (1 - key[0], key[1]) in packed]
    assert any(packed[0, example] != packed[1, example] for _, example in both)
    assert any(packed[key] != other[key] for key in packed.keys() & other.keys())


def one_by_one(batch: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ids of each sentence, and those that are left."""
    found = []
    for ids, left, own in zip(
        batch["input_ids"], batch["kept_ids"], batch["example_ids"], strict=True
    ):
        for slot in range(1, own.max() + 1):
            kept = left[own == slot]
            found.append((ids[own == slot], kept[kept >= 0]))
    return found


def their_loss(encoder: Any, decoder: Any, batch: dict[str, np.ndarray]) -> Any:
    """DenoisingAutoEncoderLoss, one sentence at a time, of the mean of its states."""
    losses = []
    for ids, left in one_by_one(batch):
        states = encoder(input_ids=torch.from_numpy(left)[None].long()).last_hidden_state
        whole = torch.from_numpy(ids)[None].long()
        logits = decoder(
            input_ids=whole[:, :-1], encoder_hidden_states=states.mean(1, keepdim=True)
        ).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0], whole[0, 1:], reduction="none"))
    return torch.cat(losses).mean()


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_a_step_is_that_of_pytorch_with_cross_attention(store: TokenStore) -> None:
    """In float64, against a BertLMHeadModel with cross-attention whose output layer is 1; its other
    parameters are equal to the encoder's, and the gradients of both are added up."""
    config, batches = batches_of(denoising_config(store))
    batch, model = batches.batch(0), config.model
    graph, _ = declare(model, config.compute, ("denoising",))
    params = init_params(model, config.compute, ("denoising",), jax.random.key(3))
    corpus = Corpus((), np.zeros(model.vocab_size, np.float32))

    def loss(params: Any, batch: Any) -> Any:
        outputs = nnx.merge(graph, params)(batch, jax.numpy.uint32(1))
        return total.all_sums(outputs, batch, corpus)[0]

    with jax.default_matmul_precision("highest"):
        value, gradients = jax.jit(jax.value_and_grad(loss))(params, batch)
    params, gradients = (jax.tree.map(np.asarray, tree) for tree in (params, gradients))
    plain = without_head(model)
    values = json.loads(json.dumps(to_config_json(plain, pad_token_id=0, heads=params)))
    settings = transformers.BertConfig(**values)
    encoder = transformers.BertModel(settings, add_pooling_layer=False).double().eval()
    settings = transformers.BertConfig(**values, is_decoder=True, add_cross_attention=True)
    decoder = transformers.BertLMHeadModel(settings).double().eval()
    named = {n: torch.from_numpy(x) for n, x in weights.to_transformers(params, plain).items()}
    of_encoder = {n.removeprefix("bert."): x for n, x in named.items() if n.startswith("bert.")}
    encoder.load_state_dict(of_encoder)
    assert not decoder.load_state_dict(named, strict=False).unexpected_keys
    maps = [layer.crossattention for layer in decoder.bert.encoder.layer]
    own = params["decoder"]["layers"]
    with torch.no_grad():
        for number, part in enumerate(maps):
            part.self.value.weight.copy_(torch.tensor(own["dense"]["kernel"][number].T))
            part.self.value.bias.copy_(torch.tensor(own["dense"]["bias"][number]))
            part.output.dense.weight.copy_(torch.eye(model.hidden_size))
            part.output.dense.bias.zero_()
            part.output.LayerNorm.weight.copy_(torch.tensor(own["norm"]["scale"][number]))
            part.output.LayerNorm.bias.copy_(torch.tensor(own["norm"]["bias"][number]))
    theirs = their_loss(encoder, decoder, batch)
    theirs.backward()
    np.testing.assert_allclose(float(value), theirs.item(), rtol=1e-6)
    of_decoder = {n: p.grad for n, p in decoder.named_parameters()}
    wanted = {n: of_decoder[n] for n in named}
    for name, parameter in encoder.named_parameters():
        wanted[f"bert.{name}"] = wanted[f"bert.{name}"] + parameter.grad
    ours = weights.to_transformers(gradients, plain)
    for name, found in ours.items():
        assert difference(found, wanted[name].numpy()) <= 1e-5, name
    own = gradients["decoder"]["layers"]
    for number, part in enumerate(maps):
        pairs = (
            (own["dense"]["kernel"][number].T, part.self.value.weight),
            (own["dense"]["bias"][number], part.self.value.bias),
            (own["norm"]["scale"][number], part.output.LayerNorm.weight),
            (own["norm"]["bias"][number], part.output.LayerNorm.bias),
        )
        assert max(difference(found, other.grad.numpy()) for found, other in pairs) <= 1e-5
        assert np.abs(pairs[0][0]).max() > 1e-3


def losses_of(config: Config, batch: dict[str, np.ndarray]) -> tuple[float, np.ndarray]:
    """The loss, and that of each position, of initial parameters, in a training step."""
    graph, _ = declare(config.model, config.compute, ("denoising",))
    params = init_params(config.model, config.compute, ("denoising",), jax.random.key(3))
    corpus = Corpus((), np.zeros(config.model.vocab_size, np.float32))

    def loss(params: Any, batch: Any) -> Any:
        outputs = nnx.merge(graph, params)(batch, jax.numpy.uint32(1))
        return total.all_sums(outputs, batch, corpus)[0], outputs["denoising"].loss

    value, each = jax.jit(loss)(params, batch)
    return float(value), np.asarray(each)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "pooling"),
    [
        ("bert", "mean"), ("roberta-prelayernorm", "mean"), ("modernbert", "mean"),
        ("albert", "mean"), ("bert", "lasttoken,weightedmean"),
    ],
)  # fmt: skip
def test_the_decoder_of_every_layout_reads_what_is_before(
    store: TokenStore, layout: str, pooling: str
) -> None:
    """With windows, shared layers, pre-LayerNorm; packed and padded."""
    own = {f"model__{name}": value for name, value in LAYOUTS[layout].items()}
    own["task__pooling"] = pooling
    config, batches = batches_of(denoising_config(store, **own))
    _, padded = batches_of(denoising_config(store, **own, **PADDED))
    batch, alone = batches.batch(0), padded.batch(0)
    value, _ = losses_of(config, batch)
    other, each = losses_of(config, alone)
    assert other == pytest.approx(value, rel=1e-6)
    row = int(alone["example_ids"].sum(1).argmax())
    last = int(alone["example_ids"][row].sum()) - 2  # before [SEP]
    ids = alone["input_ids"].copy()
    ids[row, last] = 5 + (ids[row, last] + 1) % 90
    _, changed = losses_of(config, {**alone, "input_ids": ids})
    np.testing.assert_array_equal(changed[row, : last - 1], each[row, : last - 1])
    assert (changed[row, last - 1 : last + 1] != each[row, last - 1 : last + 1]).all()


@pytest.fixture(scope="module")
def plain(store: TokenStore) -> tuple:
    """The first steps on one device, packed."""
    return trained(denoising_config(store, **USUAL), 2)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_batch_changes_no_loss_and_no_update(
    store: TokenStore, plain: tuple, form: str
) -> None:
    """Two steps like SGD's: Adam with a large eps."""
    losses, before, params = plain
    changes: dict[str, Any] = FORMS[form]
    devices = changes.get("mesh__data", 1) * changes.get("mesh__fsdp", 1)
    others, _, after = trained(denoising_config(store, **USUAL, **changes), 2, devices)
    np.testing.assert_allclose(others, losses, rtol=1e-6)
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), before, params))
    assert max(moved) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=2e-6), params, after)


@pytest.mark.slow
def test_a_run_is_evaluated_and_exported_without_its_decoder(
    store: TokenStore, tmp_path: Path
) -> None:
    """From a pretrained model, which has the head of the word scores, too. The decoder reads what
    dense layers make of the joined pools, and each evaluation searches."""
    loop.pretrain(small_config(store), tmp_path / "run")
    (tmp_path / "pairs.tsv").write_text("a\tb\nw1 w2\tw1 w3\nw4 w5\tw4 w6\nw7\tw8\n")
    config = denoising_config(
        store, init=f"{tmp_path}/run", task__tokenizer="", task__epochs=2.0, mesh__data=-1,
        task__pooling="cls,mean", task__dense="24:SiLU,16:Identity", checkpoint__keep_start=True,
        task__retrieval=str(write_search(tmp_path)),
    )  # fmt: skip
    finetune(config, tmp_path / "vectors", open_search=RunSearch)
    evals = list(read_records(Workdir.open(tmp_path / "vectors").metrics, "eval"))
    assert evals[-1]["denoising/loss"] < evals[0]["denoising/loss"] + 1
    assert 3 < evals[-1]["denoising/baseline_loss"] < np.log(100)
    assert 0 <= evals[-1]["task/mrr"] <= 1
    found = evaluate_retrieval(f"{tmp_path}/vectors", config.task.retrieval).rows
    (ndcg, *_) = [row.found.value for row in found if row.measure == "nDCG@10"]
    assert evals[-1]["task/nDCG@10"] == pytest.approx(ndcg)
    run_export(tmp_path / "vectors", tmp_path / "folder")
    tensors = load_file(tmp_path / "folder" / "model.safetensors")
    assert not [name for name in tensors if "cls" in name or "crossattention" in name]
    assert not (tmp_path / "folder" / "heads.safetensors").exists()
    (vector,) = bert_jax.load(tmp_path / "folder").encode(["w1 w2 w3"])
    assert vector.shape == (16,)
    assert vector @ vector == pytest.approx(1, abs=1e-5)
    (of_run,) = load_model(f"{tmp_path}/vectors").encode(["w1 w2 w3"])
    np.testing.assert_allclose(of_run, vector, atol=1e-5)
    given = load_file(tmp_path / "folder/2_Dense/model.safetensors")["linear.weight"]
    start, last = (
        np.asarray(load_model(f"{tmp_path}/vectors@{step}").part_weights[1]["linear.weight"])
        for step in (0, evals[-1]["step"])
    )
    assert np.array_equal(given, last)
    assert not np.allclose(given, start)
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\nw1 w2\tw1 w2\n")
    predict(f"{tmp_path}/vectors", f"{tmp_path}/pairs.tsv", tmp_path / "cosines.tsv")
    assert "1.0000" in (tmp_path / "cosines.tsv").read_text()


@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_to_the_same_bits(store: TokenStore, tmp_path: Path) -> None:
    config = denoising_config(
        store, mesh__data=-1, model__hidden_dropout_prob=0.1, task__epochs=1.0,
        task__most_pairs=40, checkpoint__every_steps=2,
    )  # fmt: skip
    with pytest.raises(StoppedError):
        finetune(config, tmp_path / "stopped", options=RunOptions(stop_after=3))
    finetune(config, tmp_path / "stopped")
    finetune(config, tmp_path / "whole")
    meta, other = (read_meta(tmp_path / where, 5) for where in ("stopped", "whole"))
    assert meta["fingerprints"] == other["fingerprints"]
    assert meta["evaluation"] == other["evaluation"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__held_out": "dev.tsv"}, "task.held_out=dev.tsv has no effect for denoising"),
        ({"task__dimensions": "8"}, "task.dimensions=8 has no effect for denoising"),
        ({"task__query_prompt": "q: "}, "task.query_prompt=q:  has no effect for denoising"),
        ({"task__deletion": 1.0}, "task.deletion=1.0"),
        ({"task__name": "rte", "task__deletion": 0.5}, "no effect for rte"),
    ],
)
def test_what_has_no_effect_is_one_line(store: TokenStore, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_task(denoising_config(store, **changes))
