"""ELECTRA: a generator and its discriminator in one step, and the two models of a run."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store
from flax import nnx
from golden_case import CASES
from late_import import LateImport
from layout_models import layout_config
from nightly import others_nightly
from runs import read_records
from small import COMPUTE
from small_step import ALL_AT_ONCE, CORPUS, PACKED, mesh_of, place, rows_of, small
from split_steps import Trained, assert_same, train

import bert_jax
from bert_jax.api.held_out_evaluation import evaluate_held_out
from bert_jax.api.text_evaluation import evaluate_text
from bert_jax.commands.fill import print_fills
from bert_jax.config.config_files import load
from bert_jax.config.generator_settings import GeneratorConfig
from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import Config
from bert_jax.convert import weights
from bert_jax.convert.exportable import not_exportable
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError, UserError
from bert_jax.metrics.flops import step_flops
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.disentangled_embeddings import summed
from bert_jax.objectives.known_objectives import with_heads
from bert_jax.objectives.pretraining_model import declare, init_params, parameter_count
from bert_jax.objectives.replaced_token_model import generator_params, replaced_batch
from bert_jax.objectives.total import all_sums
from bert_jax.ops.draws import draw
from bert_jax.publish.export import run_export
from bert_jax.training import loop
from bert_jax.training.evaluate import evaluate_run
from bert_jax.training.options import RunOptions
from bert_jax.training.progress import held_out
from bert_jax.training.step import make_step_functions

torch = LateImport("torch")
parity = LateImport("torch_parity", reason="needs transformers, too")
BOTH = ("mlm", "rtd")
SMALLER = GeneratorConfig(hidden_size=8, num_attention_heads=2, intermediate_size=16)
APART = dataclasses.replace(SMALLER, embedding_sharing="gradient_disentangled")
FORMS: dict[str, dict[str, Any]] = {
    "narrower tables": {"embedding_size": 16, "generator": SMALLER},
    "tables of the model": {"generator": SMALLER},
    "small++": {"embedding_size": 16},
}


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("form", others_nightly(FORMS, keep=["narrower tables"]))
def test_a_step_is_that_of_pytorch(form: str) -> None:
    """Loss and gradients of both networks in transformers, on the same draws; the embeddings have
    those of both."""
    config = layout_config("electra", **FORMS[form])
    params = jax.tree.map(
        lambda x: np.asarray(x) * 3, init_params(config, COMPUTE, BOTH, jax.random.key(1))
    )
    batch: dict[str, Any] = cases.batch(CASES["tiny"], 0)
    keys = np.random.default_rng(0).integers(0, 2**32, batch["masked_labels"].shape, np.uint32)
    arrays = {name: jnp.asarray(x) for name, x in (batch | {"draw_keys": keys}).items()}
    graph = declare(config, COMPUTE, BOTH)[0]
    corpus = Corpus(("text",), np.zeros(config.vocab_size, np.float32))

    def loss_of(params: Any) -> tuple:
        outputs = nnx.merge(graph, params)(arrays)
        return all_sums(outputs, arrays, corpus, factors={"rtd": 50.0})[0], outputs["mlm"]

    with jax.default_matmul_precision("highest"):
        (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    replaced = {k: np.asarray(v) for k, v in replaced_batch(arrays, draw(logits, keys)).items()}
    assert 0 < replaced["replaced"].sum() < (batch["masked_weights"] > 0).sum() + 1

    generator, small = generator_of(config), generator_params(params)
    alone = {name: part for name, part in params.items() if name != "generator"}
    theirs = [
        parity.theirs_of(*one).double() for one in ((generator, small), (config, alone))
    ]  # float64: the error is ours
    assert [type(one).__name__ for one in theirs] == ["ElectraForMaskedLM", "ElectraForPreTraining"]
    mlm, _ = parity.outputs_of(theirs[0], generator, batch)
    out = theirs[1](
        **parity.inputs_of(config, replaced), labels=torch.from_numpy(replaced["replaced"]).double()
    )
    total = mlm + 50 * out.loss
    total.backward()
    np.testing.assert_allclose(loss, total.item(), rtol=1e-6)
    own = {name: part for name, part in gradients.items() if name != "generator"}
    ours = (
        weights.to_transformers(generator_params(gradients), generator),
        weights.to_transformers(own, config),
    )
    found = [{n: p.grad.numpy() for n, p in one.named_parameters()} for one in theirs]
    for mine, other, beside in zip(ours, found, found[::-1], strict=True):
        for name, gradient in mine.items():
            wanted = other[name]
            if "electra.embeddings." in name:  # shared
                wanted = wanted + beside[name]
            if name.endswith("word_embeddings.weight"):
                gradient[0] = wanted[0]  # PyTorch leaves out what its table is read for padding
            scale = max(1.0, np.abs(wanted).max())
            np.testing.assert_allclose(gradient, wanted, atol=1e-5 * scale, err_msg=name)


def steps_of_both(changes: dict[str, Any], before: Any = None) -> Trained:
    model = {"generator": SMALLER, **changes.get("model", {})}
    return train(small("mlm+rtd", **{**changes, "model": model}), before)


SPLITS: dict[str, dict[str, Any]] = {
    "everything": ALL_AT_ONCE,
    "data8": {"mesh": {"data": 8}},
    "fsdp8": {"mesh": {"data": 1, "fsdp": 8}},
    "accumulated": {"phase": {"micro_batches": 4}},
    "packed": {"phase": PACKED},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", others_nightly(SPLITS, keep=["everything"]))
def test_the_same_numbers_however_the_step_is_split(name: str) -> None:
    one = steps_of_both({})
    assert_same(one, steps_of_both(SPLITS[name], one.before))


@pytest.mark.nightly
def test_the_same_numbers_with_tables_apart_however_the_step_is_split() -> None:
    apart = {"model": {"generator": APART}}
    one = steps_of_both(apart)
    assert_same(one, steps_of_both({**ALL_AT_ONCE, **apart}, one.before))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("electra") / "store")


def config_of(store: TokenStore, **changes: Any) -> Config:
    values = {
        "phases[0].steps": 4, "checkpoint.every_steps": 2, "log_every_steps": 2,
        "data.pairing": "single", "data.masking": "with_replacement", "data.replaced_tokens": True,
        "data.mask_share": 0.85, "data.random_share": 0.0, "model.layout": "electra",
        "model.embedding_size": 16, "model.generator.hidden_size": 16,
        "model.generator.intermediate_size": 32,
    }  # fmt: skip
    renamed = {key.replace("__", "."): value for key, value in changes.items()}
    return small_config(store).replace(values | renamed)


@pytest.fixture(scope="module")
def source(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, `run`, and what its export writes, `folder`."""
    place = tmp_path_factory.mktemp("source")
    loop.pretrain(config_of(store), place / "run")
    run_export(place / "run", place / "folder")
    return place


def test_a_run_records_both_networks(source: Path, capsys: pytest.CaptureFixture) -> None:
    last = read_records(source / "run", "train")[-1]
    names = {"loss", "accuracy", "precision", "recall", "auc", "right_draws", "baseline_accuracy"}
    assert {f"rtd/{name}" for name in names} <= last.keys()
    assert 0 <= last["rtd/right_draws"] < 0.5 < last["rtd/baseline_accuracy"]
    assert last["mlm/loss"] > last["rtd/loss"] > 0
    (record,) = evaluate_run(source / "run")
    assert {"mlm/loss", "rtd/loss", "rtd/auc", "rtd/loss_margin"} <= record.keys()
    head = next(line for line in capsys.readouterr().out.splitlines() if "RTD loss" in line)
    assert re.search(r"MLM loss +unigram .*RTD loss +constant ", head)
    words, tokens = held_out(record).split("; ")[:2]
    assert re.match(r"MLM loss .*\(unigram ", words)
    assert re.match(r"RTD loss .*\(constant .*, AUC 0\.", tokens)


def test_a_form_without_replaced_tokens_measures_the_generator(
    store: TokenStore, source: Path, capsys: pytest.CaptureFixture
) -> None:
    """As its export, and the output says so."""
    form = "single/span:32"
    (record,) = evaluate_run(source / "run", forms=(form,))
    said = "MLM: of the run's generator, hidden_size=16 (of the discriminator 32)"
    assert said in " ".join(capsys.readouterr().out.split())
    assert "rtd/loss" not in record
    of_run, alone = measured_by_model(store, source / "run", source / "folder/generator", form)
    assert of_run[0].model == f"{source / 'run'}, its generator"
    assert record["mlm/loss"] == pytest.approx(of_run[0].found.value, rel=1e-5)
    assert of_run[0].found.value == pytest.approx(alone[0].found.value, rel=1e-4)


def measured_by_model(store: TokenStore, run: Path, folder: Path, form: str) -> list:
    return [evaluate_held_out(str(m), store.path, forms=(form,)).rows for m in (run, folder)]


def test_both_models_are_exported_and_read(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folders = [source / "folder" / name for name in ("discriminator", "generator")]
    found = [safetensors.numpy.load_file(folder / "model.safetensors") for folder in folders]
    table = "electra.embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(found[0][table], found[1][table])
    assert "discriminator_predictions.dense.weight" in found[0]
    assert "generator_lm_head.bias" in found[1]
    discriminator, generator = map(bert_jax.load, folders)
    assert (discriminator.config.hidden_size, generator.config.hidden_size) == (32, 16)
    assert generator.fill_mask("w1 [MASK] w2")[0][0].probability > 0
    texts = tmp_path / "texts"
    texts.write_text("w1 w2 w3\nw4 w5\n", encoding="utf-8")
    of_run, alone = (evaluate_text(str(m), texts).rows for m in (source / "run", folders[1]))
    assert of_run[0].model == f"{source / 'run'}, its generator"
    assert of_run[0].found == alone[0].found
    assert discriminator.encode("w1 w2").shape == (1, 32)
    with pytest.raises(UserError, match=r"language-model head; give .* the generator in an export"):
        print_fills(folders[0], ["w1 [MASK]"], 1)
    assert not capsys.readouterr().out
    pair, run = source / "folder", source / "run"
    says = f"has two models; give {pair}/generator where .*, else {pair}/discriminator$"
    with pytest.raises(UserError, match=rf"^{pair}: {says}"):
        bert_jax.load(pair)
    for key in ("init", "teacher"):
        named = config_of(store, data__replaced_tokens=False, **{key: str(pair)})
        with pytest.raises(UserError, match=rf"^config\.{key}={pair}: {says}"):
            loop.pretrain(named, tmp_path / "none")
    with pytest.raises(UserError, match=r"--out=…; then give its generator where masked tokens"):
        bert_jax.load(run)
    taught = config_of(store, data__replaced_tokens=False, teacher=f"{source}/run@4")
    with pytest.raises(UserError, match=r"no masked-language.*the generator in an export"):
        loop.pretrain(taught, tmp_path / "taught")
    run_export(source / "run", tmp_path / "all", all_steps=True)
    assert (tmp_path / "all" / "step-4" / "generator" / "config.json").is_file()
    run_export(source / "run", source / "folder")  # which it may replace
    with pytest.raises(UserError, match="moments are those of two networks"):
        run_export(source / "run", tmp_path / "moments", optimizer_state=True)


def test_a_generator_without_a_class_is_named(store: TokenStore) -> None:
    config = config_of(store)
    assert not not_exportable(config)
    plain = config.replace({"model.layout": "bert", "model.embedding_size": 0})
    assert "the generator: config.model.embedding_size=32: BertModel" in not_exportable(plain)
    assert not not_exportable(plain.replace("model.generator.hidden_size", 32))
    assert not not_exportable(plain.replace("data.replaced_tokens", False))


@pytest.mark.slow
def test_a_generator_without_a_class_stays_in_the_workdir(
    store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A narrower one than its tables, where no class has a dense layer after them: the run says so
    when it starts, and each checkpoint's discriminator is exported."""
    run, out = tmp_path / "run", tmp_path / "all"
    loop.pretrain(config_of(store, model__layout="bert", model__embedding_size=0), run)
    reason = "config.model.embedding_size=32: BertModel has 0; such a model cannot be exported"
    assert f"the generator: {reason}; it stays in the workdir\n" in capsys.readouterr().err
    assert run_export(run, out, all_steps=True) == [2, 4]
    said = capsys.readouterr().out
    assert said.count(f"left out: the generator ({reason}); it stays in {run}\n") == 2
    assert [path.name for path in (out / "step-2").iterdir()] == ["discriminator"]
    run_export(run, out, all_steps=True)  # which it may replace
    run_export(run, tmp_path / "one")
    assert bert_jax.load(tmp_path / "one" / "discriminator").encode("w1").shape == (1, 32)
    texts = tmp_path / "texts"
    texts.write_text("w1 w2 w3\n", encoding="utf-8")
    assert evaluate_text(str(run), texts).rows[0].model == f"{run}, its generator"


def test_another_run_starts_from_the_discriminator(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """And one of two networks from both."""
    values = {"optimizer.learning_rate": 0.0, "seed": 7}
    plain = {"data.replaced_tokens": False, "data.masking": "token"}
    config = config_of(store, init=f"{source}/run@4").replace(values | plain)
    loop.pretrain(config, tmp_path / "mlm")
    said = capsys.readouterr().out
    assert f"{source}/run@4 is a discriminator; its generator is left out" in said
    run_export(tmp_path / "mlm", tmp_path / "exported")
    ours = safetensors.numpy.load_file(tmp_path / "exported" / "model.safetensors")
    theirs = safetensors.numpy.load_file(source / "folder/discriminator/model.safetensors")
    shared = [name for name in theirs if name.startswith("electra.")]
    for name in shared:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)

    both = config_of(store, init=f"{source}/run@4").replace(values)
    loop.pretrain(both, tmp_path / "both")
    run_export(tmp_path / "both", tmp_path / "pair")
    for kind in ("discriminator", "generator"):
        ours, theirs = (
            safetensors.numpy.load_file(place / kind / "model.safetensors")
            for place in (tmp_path / "pair", source / "folder")
        )
        for name, tensor in theirs.items():
            np.testing.assert_array_equal(ours[name], tensor, err_msg=name)


def test_a_run_with_another_generator_starts_from_the_discriminator_alone(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    config = config_of(store, model__generator__hidden_size=8, init=f"{source}/run@4")
    with pytest.raises(UserError, match=r"its generator has other sizes; set .*hidden_size=16, or"):
        loop.pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tables_that_the_model_lacks_have_no_moments_to_carry(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    again = {"init": f"{source}/run@4", "init_optimizer": "carry", "phases[0].steps": 6}
    with pytest.raises(UserError, match=OTHER_TABLES.format("shared")):
        loop.pretrain(config_of(store, **again, **DISENTANGLED), tmp_path / "run")


def test_a_stopped_run_resumes_with_the_same_bits(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    config = config_of(store)
    with pytest.raises(StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    loop.pretrain(config, tmp_path / "run")
    run_export(tmp_path / "run", tmp_path / "folder")
    for kind in ("discriminator", "generator"):
        ours, theirs = (
            safetensors.numpy.load_file(place / kind / "model.safetensors")
            for place in (tmp_path / "folder", source / "folder")
        )
        for name, tensor in theirs.items():
            np.testing.assert_array_equal(ours[name], tensor, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model__generator__hidden_size": 64}, "hidden_size=64 is wider than the model"),
        (
            {"model__generator__hidden_size": 15},
            "hidden_size=15 is not a multiple of config.model.num_attention_heads=2; change it, or "
            "set config.model.generator.num_attention_heads",
        ),
        (
            {"model__position": "rotary", "model__generator__hidden_size": 6},
            "a head of the generator has 3 ",
        ),
        (
            {"model__num_hidden_groups": 2, "model__generator__num_hidden_layers": 3},
            "generator.num_hidden_layers=3 is not a multiple of config.model.num_hidden_groups=2",
        ),
        ({"rtd_weight": 0.0}, "rtd_weight=0 .* the model learns nothing"),
        ({"data__pairing": "nsp"}, "replaced-token detection has no sentence pairs"),
        ({"objectives": "rtd"}, 'set "mlm,rtd"'),
        (
            {"objectives": "mlm,rtd", "data__replaced_tokens": False},
            "rtd; .*replaced_tokens, or",
        ),
    ],
)
def test_wrong_settings_are_one_line(
    changes: dict, says: str, store: TokenStore, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says) as error:
        loop.pretrain(config_of(store, **changes), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_parameters_and_operations_of_both_networks_count(store: TokenStore) -> None:
    config = config_of(store)
    model, shared = config.model, 16 * (config.model.vocab_size + 32 + 2) + 2 * 16
    alone = parameter_count(model, ("rtd",)), parameter_count(generator_of(model), ("mlm",))
    assert parameter_count(model, BOTH) == sum(alone) - shared
    (phase,) = config.phases
    one = step_flops(config.replace({"data.replaced_tokens": False}), phase)
    assert one < step_flops(config, phase) < 2 * one


def test_a_generator_reads_positions_through_its_dense_layer() -> None:
    started = load("demo").model
    model = dataclasses.replace(started, generator=GeneratorConfig(hidden_size=64))
    found = generator_of(model)
    assert (found.initializer, found.embedding_size) == ("random", model.hidden_size)


OTHER_TABLES = (
    "its generator has other tables; set --config.model.generator.embedding_sharing={}, or"
)
DISENTANGLED = {"model__generator__embedding_sharing": "gradient_disentangled"}


def test_a_discriminators_gradients_reach_only_tables_of_its_own() -> None:
    """Those of the generator's tables are its own loss's; the discriminator reads the sums."""
    config = layout_config("electra", embedding_size=16, generator=APART)
    params = init_params(config, COMPUTE, BOTH, jax.random.key(1))
    own = params["encoder"]["embeddings"]
    for name in ("word", "position"):
        assert not np.any(own[name])
        own[name] += 0.1 * jax.random.normal(jax.random.key(2), own[name].shape)
    batch: dict[str, Any] = cases.batch(CASES["tiny"], 0)
    keys = np.random.default_rng(0).integers(0, 2**32, batch["masked_labels"].shape, np.uint32)
    arrays = {name: jnp.asarray(x) for name, x in (batch | {"draw_keys": keys}).items()}
    corpus = Corpus(("text",), np.zeros(config.vocab_size, np.float32))

    def loss_of(config: Any, params: Any, factor: float) -> jax.Array:
        outputs = nnx.merge(declare(config, COMPUTE, BOTH)[0], params)(arrays)
        return all_sums(outputs, arrays, corpus, factors={"rtd": factor})[0]

    both = jax.grad(lambda p: loss_of(config, p, 50.0))(params)
    alone = jax.grad(lambda p: loss_of(config, p, 0.0))(params)

    def base(tree: Any) -> Any:
        return tree["generator"]["encoder"]["embeddings"]

    for name in ("word", "position"):
        np.testing.assert_allclose(base(both)[name], base(alone)[name], atol=1e-7)
        assert np.any(both["encoder"]["embeddings"][name])
        assert not np.any(alone["encoder"]["embeddings"][name])
    # Two ordinary models, each with tables of its own, have the same losses.
    read = summed(params)
    words = own["word"] + base(params)["word"]
    np.testing.assert_array_equal(read["encoder"]["embeddings"]["word"], words)
    logits = _model_of(generator_of(config), generator_params(read))(arrays)["mlm"]
    outputs = nnx.merge(declare(config, COMPUTE, BOTH)[0], params)(arrays)
    np.testing.assert_allclose(outputs["mlm"], logits, atol=1e-6)
    replaced = replaced_batch(arrays, draw(logits, keys))
    alone = {name: part for name, part in read.items() if name != "generator"}
    found = _model_of(config, alone)(replaced)["rtd"]
    np.testing.assert_allclose(outputs["rtd"].logits, found, atol=1e-5)


def _model_of(config: Any, params: Any) -> Any:
    return nnx.merge(declare(config, COMPUTE, with_heads(params))[0], params)


@pytest.mark.slow
def test_attention_is_measured_of_the_tables_that_a_discriminator_reads() -> None:
    """Its own are zeros at the start: all tokens would get the same."""
    config = small("mlm+rtd", model={"initializer": "positional_heads", "generator": APART})
    config = config.replace("evaluation.attention", True)
    mesh = mesh_of(config)
    program = make_step_functions(config, mesh, CORPUS)
    with jax.set_mesh(mesh):
        sums = program.evaluate(program.init()["params"], place(program, rows_of(config)))
    left, right = (np.asarray(sums["attention"][side])[0] for side in ("left", "right"))
    assert abs(left - right).max() > 0.1 * float(sums["attention"]["count"])


def test_a_run_with_disentangled_embeddings_is_resumed_exported_and_continued(
    store: TokenStore, tmp_path: Path
) -> None:
    config = config_of(store, **DISENTANGLED)
    loop.pretrain(config, tmp_path / "whole")
    with pytest.raises(StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    loop.pretrain(config, tmp_path / "run")
    for run in ("whole", "run"):
        run_export(tmp_path / run, tmp_path / f"{run}_folder")
    still = {"optimizer.learning_rate": 0.0}
    again = config_of(store, init=f"{tmp_path}/run@4", **DISENTANGLED).replace(still)
    loop.pretrain(again, tmp_path / "again")
    run_export(tmp_path / "again", tmp_path / "again_folder")
    for changes in ({}, {"init_optimizer": "carry", "phases[0].steps": 6}):
        with pytest.raises(UserError, match=OTHER_TABLES.format("gradient_disentangled")):
            loop.pretrain(config_of(store, init=f"{tmp_path}/run@4", **changes), tmp_path / "none")
    shared = config_of(store, init=f"{tmp_path}/whole_folder/discriminator").replace(still)
    loop.pretrain(shared.replace({"model.generator.embedding_sharing": "gradient_disentangled"}),
                  tmp_path / "from_one")  # fmt: skip
    run_export(tmp_path / "from_one", tmp_path / "from_one_folder")
    tables = {}
    for kind in ("discriminator", "generator"):
        read = {}
        for run in ("whole", "run", "again", "from_one"):
            file = tmp_path / f"{run}_folder" / kind / "model.safetensors"
            read[run] = safetensors.numpy.load_file(file)
        for name, tensor in read["whole"].items():
            np.testing.assert_array_equal(read["run"][name], tensor, err_msg=name)
            np.testing.assert_allclose(read["again"][name], tensor, atol=1e-7, err_msg=name)
        tables[kind] = read["whole"]["electra.embeddings.word_embeddings.weight"]
        found = read["from_one"]["electra.embeddings.word_embeddings.weight"]
        np.testing.assert_array_equal(found, tables["discriminator"])
    assert np.any(tables["discriminator"] != tables["generator"])
    generator = tmp_path / "whole_folder/generator"
    of_run, alone = measured_by_model(store, tmp_path / "whole", generator, "single/token:32")
    assert of_run[0].found.value == pytest.approx(alone[0].found.value, rel=1e-4)
