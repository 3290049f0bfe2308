"""ELECTRA: the settings, names and heads of its two networks, and folders of both."""

import dataclasses
import json
from pathlib import Path

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store
from exported import random_params
from flax import nnx
from golden_case import CASES
from late_import import LateImport
from layout_models import layout_config
from parity_steps import RECIPE, difference, our_steps
from small import COMPUTE, run_config

import bert_jax
from bert_jax import cli
from bert_jax.checkpoint.fingerprint import by_path
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.convert.task_heads import with_head
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare, parameter_count
from bert_jax.objectives.total import all_sums
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.training.initial import find_initial
from bert_jax.training.store_data import StoreData
from bert_jax.workdir.layout import Workdir

torch = LateImport("torch")
parity = LateImport("torch_parity", reason="needs transformers, too")

CONFIG = layout_config("electra")
CLASSES = {"rtd": "ElectraForPreTraining", "mlm": "ElectraForMaskedLM"}
VALUES = json.loads(json.dumps(to_config_json(CONFIG, pad_token_id=0, heads={"rtd"})))
SMALL = ModelConfig(
    layout="electra", hidden_size=256, embedding_size=128, num_attention_heads=4,
    intermediate_size=1024, pad_vocab_to_multiple_of=1,
)  # fmt: skip
BASE = ModelConfig(layout="electra", pad_vocab_to_multiple_of=1)
# The tables as wide as the hidden states, wider, and heads whose number is odd.
FORMS = [
    {},
    {"embedding_size": 0},
    {"embedding_size": 48},
    {"hidden_size": 24, "num_attention_heads": 3},
    {"hidden_size": 16, "num_attention_heads": 1, "embedding_size": 32},
]


def read(values: dict) -> ModelConfig:
    return from_config_json(values, "config.json")


def batch_of(step: int) -> dict[str, np.ndarray]:
    """The parity rows, some of which are padded, with labels of replaced tokens."""
    batch = cases.batch(CASES["tiny"], step)
    draw = np.random.default_rng(step).random(batch["input_ids"].shape)
    return batch | {"replaced": ((draw < 0.3) & (batch["example_ids"] > 0)).astype(np.int32)}


def test_its_settings_are_written_and_read():
    assert VALUES["architectures"] == ["ElectraForPreTraining"]
    assert (VALUES["model_type"], VALUES["embedding_size"]) == ("electra", 16)
    assert (VALUES["summary_type"], VALUES["summary_activation"]) == ("first", "gelu")
    assert read(VALUES) == CONFIG
    equal = layout_config("electra", embedding_size=0)
    values = to_config_json(equal, pad_token_id=0, heads={"mlm"})
    assert values["architectures"] == ["ElectraForMaskedLM"]
    assert values["embedding_size"] == equal.hidden_size
    assert read(values) == equal
    default = {name: value for name, value in VALUES.items() if name != "embedding_size"}
    assert read(default).embedding_size == 128
    assert read(default | {"hidden_size": 128}).embedding_size == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"embedding_size": None}, "embedding_size=None should be int"),
        ({"embedding_size": 0}, "embedding_size=0 should be from 1 to"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new', but the head always computes 'gelu'"),
        ({"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ({"summary_type": "mean"}, "summary_type='mean' is not supported; only 'first'"),
        ({"summary_use_proj": False}, "summary_use_proj=False is not supported; only True"),
        ({"summary_activation": "tanh"}, "summary_activation='tanh' is not supported; only 'gelu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"type_vocab_size": 0}, "type_vocab_size=0: ElectraModel has token types"),
    ],
)
def test_what_our_models_do_not_compute_is_one_line(change, says):
    with pytest.raises(UserError, match=rf"^config.json: [^\n]*{says}[^\n]*$"):
        read(VALUES | change)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"embedding_size": 32}, "embedding_size=32: ElectraModel has no dense layer between"),
        ({"num_hidden_groups": 1}, "num_hidden_groups=1: ElectraModel has 0"),
        ({"hidden_act": "gelu_tanh"}, 'no class with layout="electra".*hidden_act="gelu_tanh"'),
    ],
)
def test_a_model_that_no_class_computes_is_refused(change, says):
    with pytest.raises(UserError, match=says):
        to_config_json(layout_config("electra", **change), pad_token_id=0)


def test_keys_of_a_folder_that_have_no_effect_are_known(capsys):
    """The last one is in those of a Danish ELECTRA."""
    for key, value in {"summary_last_dropout": 0.3, "generator_size": "0.25"}.items():
        assert read(VALUES | {key: value}) == CONFIG
    assert capsys.readouterr().err == ""


def test_the_dropout_of_multiple_choice_has_a_key_of_its_own():
    choice = with_head(CONFIG, "choice", ("LABEL_0", "LABEL_1"))
    assert (choice.head.dense, choice.head.dropout, choice.head.drops_input) == (
        "hidden_act", 0.1, False,
    )  # fmt: skip
    values = VALUES | {"architectures": ["ElectraForMultipleChoice"], "summary_last_dropout": 0.3}
    found = read(values)
    assert found.head.dropout == 0.3
    assert to_config_json(found, pad_token_id=0)["summary_last_dropout"] == 0.3
    classifier = read(VALUES | {"architectures": ["ElectraForSequenceClassification"]}).head
    assert (classifier.dense, classifier.dropout, classifier.drops_input) == (
        "hidden_act", 0.0, True,
    )  # fmt: skip


@pytest.mark.parametrize("head", CLASSES)
def test_tensors_have_the_names_of_the_class(head):
    params = random_params(CONFIG, (head,))
    tensors = weights.to_transformers(params, CONFIG)
    others = {name for name in tensors if not name.startswith("electra.")}
    wanted = {
        "rtd": [
            f"discriminator_predictions.{layer}.{kind}"
            for layer in ("dense", "dense_prediction")
            for kind in ("weight", "bias")
        ],
        "mlm": [
            *(
                f"generator_predictions.{layer}.{kind}"
                for layer in ("dense", "LayerNorm")
                for kind in ("weight", "bias")
            ),
            "generator_lm_head.bias",
        ],
    }[head]
    assert others == {*wanted}
    assert tensors["electra.embeddings_project.weight"].shape == (32, 16)
    assert not [name for name in tensors if "pooler" in name]
    assert weights.leftover(tensors, CONFIG) == []
    back = weights.from_transformers(tensors, CONFIG)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    bare = {name.removeprefix("electra."): tensor for name, tensor in tensors.items()}
    assert weights.leftover(bare, CONFIG) == []
    equal = layout_config("electra", embedding_size=0)
    names = weights.to_transformers(random_params(equal, (head,)), equal)
    assert not [name for name in names if "embeddings_project" in name]


def test_the_decoder_must_be_the_table():
    tensors = weights.to_transformers(random_params(CONFIG, ("mlm",)), CONFIG)
    word = tensors["electra.embeddings.word_embeddings.weight"]
    weights.from_transformers(tensors | {"generator_lm_head.weight": word.copy()}, CONFIG)
    with pytest.raises(UserError, match=r"generator_lm_head\.weight differs from electra\.embedd"):
        weights.from_transformers(tensors | {"generator_lm_head.weight": word + 1}, CONFIG)


def test_as_many_parameters_as_the_released_ones():
    assert parameter_count(SMALL, ("rtd",)) == 13_549_057
    assert parameter_count(BASE, ("rtd",)) == 109_483_009


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("head", CLASSES)
@pytest.mark.parametrize("config", [SMALL, BASE], ids=["small", "base"])
def test_as_many_parameters_as_transformers(config, head):
    import transformers

    values = json.loads(json.dumps(to_config_json(config, pad_token_id=0, heads={head})))
    with torch.device("meta"):
        theirs = getattr(transformers, CLASSES[head])(transformers.ElectraConfig(**values))
    assert parameter_count(config, (head,)) == theirs.num_parameters()


def our_loss(config: ModelConfig, head: str, params: dict, batch: dict) -> tuple:
    corpus = Corpus(("text",), np.zeros(config.vocab_size, np.float32))

    @jax.jit
    def compute(params, batch):
        outputs = nnx.merge(declare(config, COMPUTE, (head,))[0], params)(batch)
        return all_sums(outputs, batch, corpus)[0], outputs[head]

    return compute(jax.tree.map(jnp.asarray, params), batch)


def params_of(config: ModelConfig, head: str) -> dict:
    """Parameters of which as many logits of a discriminator are positive as negative."""
    params = random_params(config, (head,))
    if head == "rtd":
        _, logits = our_loss(config, head, params, batch_of(0))
        params["rtd"]["output"]["bias"] -= np.median(logits)
    return params


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("head", CLASSES)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_both_networks_are_those_of_transformers(form, head):
    """Logits and losses; those of the discriminator at every token, padding left out."""
    config = layout_config("electra", **form)
    params, batch = params_of(config, head), batch_of(0)
    real = batch["example_ids"] > 0
    assert 0 < batch["replaced"].sum() < real.sum() < real.size
    theirs = parity.theirs_of(config, params)
    assert type(theirs).__name__ == CLASSES[head]
    with jax.default_matmul_precision("highest"):
        loss, logits = our_loss(config, head, params, batch)
    with torch.no_grad():
        their_loss, their_logits = parity.outputs_of(theirs, config, batch)
    their_logits = their_logits.numpy()
    if head == "rtd":
        logits, their_logits = logits[real], their_logits[real]
    else:
        logits = logits[batch["masked_weights"] > 0]
    assert difference(logits, their_logits) <= 1e-5
    assert difference(loss, their_loss.numpy()) <= 1e-5
    assert np.abs(their_logits).max() > 0.1


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("form", FORMS[:2], ids=str)
def test_three_steps_of_a_discriminator(form):
    config = layout_config("electra", **form)
    run = run_config(recipe=RECIPE)
    data = dataclasses.replace(run.data, pairing="single")
    run = dataclasses.replace(run, model=config, data=data, rtd_weight=1.0)  # as their class
    params, batches = params_of(config, "rtd"), [batch_of(n) for n in range(cases.STEPS)]
    with jax.default_matmul_precision("highest"):
        losses, after = our_steps(run, ("rtd",), params, batches)
    theirs = parity.theirs_of(config, params)
    assert difference(losses, parity.their_steps(theirs, run, batches)) <= 1e-5
    after, reference = weights.to_transformers(after, config), theirs.state_dict()
    assert {name: reference[name].shape for name in after} == {n: x.shape for n, x in after.items()}
    for name, tensor in after.items():
        assert difference(tensor, reference[name]) <= 1e-5, name


def write(out: Path, head: str, tokenizer: Tokenizer, **changes: object) -> ModelConfig:
    """An export of a generator or a discriminator."""
    config = layout_config("electra", vocab_size=tokenizer.vocab_size, **changes)
    export(random_params(config, (head,)), config, tokenizer, out, card=Card(objectives=(head,)))
    return config


@pytest.mark.parametrize("head", CLASSES)
@pytest.mark.parametrize("width", [16, 0])
def test_an_export_is_imported_to_the_bit(head, width, tokenizer, tmp_path):
    write(tmp_path / "one", head, tokenizer, embedding_size=width)
    command = ["convert", "import", f"--from={tmp_path / 'one'}", f"--out={tmp_path / 'again'}"]
    assert cli.main(command) == DONE
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        first, second = (tmp_path / folder / name for folder in ("one", "again"))
        assert first.read_bytes() == second.read_bytes(), name
    assert cli.main(["convert", "verify", *(f"{tmp_path}/{n}" for n in ("one", "again"))]) == DONE


def test_verify_compares_the_head_of_replaced_tokens(tokenizer, tmp_path, capsys):
    for name in ("one", "other"):
        write(tmp_path / name, "rtd", tokenizer)
    file = tmp_path / "other/model.safetensors"
    tensors, bias = safetensors.numpy.load_file(file), "discriminator_predictions.dense.bias"
    safetensors.numpy.save_file(tensors | {bias: tensors[bias] + 0.5}, file)
    (tmp_path / "other/SHA256SUMS").unlink()
    words = ["convert", "verify", *(f"{tmp_path}/{name}" for name in ("one", "other"))]
    assert cli.main(words) == FAILED
    assert "differs in the replaced-token head: " in capsys.readouterr().out


def released(folder: Path, head: str, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """A folder of the files and keys of the first releases, without what later ones added."""
    config = write(folder / "new", head, tokenizer)
    tensors = safetensors.numpy.load_file(folder / "new/model.safetensors")
    positions = np.arange(config.max_position_embeddings, dtype=np.int64)[None]
    old = folder / "old"
    old.mkdir()
    stored = tensors | {"electra.embeddings.position_ids": positions}
    if head == "mlm":
        table = tensors["electra.embeddings.word_embeddings.weight"]
        stored["generator_lm_head.weight"] = table.copy()
    safetensors.numpy.save_file(stored, old / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "new/config.json").read_text())
    kept = ("_size", "_prob", "_layers", "_heads", "_act", "_eps", "_range", "_type", "embeddings")
    kept = {key: value for key, value in values.items() if key.endswith(kept)}
    kept |= {"architectures": [CLASSES[head]], "summary_last_dropout": 0.1, "pad_token_id": 0}
    (old / "config.json").write_text(json.dumps(kept | {"generator_size": "0.25"}))
    (old / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    (old / "vocab.txt").write_bytes((folder / "new/vocab.txt").read_bytes())
    return tensors


@pytest.mark.parametrize("head", CLASSES)
def test_a_released_folder_is_imported(head, tokenizer, tmp_path, capsys):
    tensors = released(tmp_path, head, tokenizer)
    command = ["convert", "import", f"--from={tmp_path / 'old'}", f"--out={tmp_path / 'out'}"]
    assert cli.main(command) == DONE
    said = capsys.readouterr()
    title = {"rtd": "replaced-token head", "mlm": "masked-language-model head"}[head]
    assert said.out.endswith(f"out: encoder, {title}\n")
    assert "unknown" not in said.err
    found = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)
    assert bert_jax.load(tmp_path / "old").encode(["A text.", "Another."]).shape == (2, 32)


def test_a_generator_fills_and_a_discriminator_says_what_it_lacks(tokenizer, tmp_path, capsys):
    for head in CLASSES:
        write(tmp_path / head, head, tokenizer)
    text = "Paris is the [MASK] of France."
    assert cli.main(["fill", f"--model={tmp_path / 'mlm'}", text]) == DONE
    assert capsys.readouterr().out.count("%") == 5
    assert cli.main(["fill", f"--model={tmp_path / 'rtd'}", text]) == FAILED
    line = capsys.readouterr().err
    assert "without its masked-language-model head" in line
    assert "give a model that has one (of ELECTRA the generator in an export)" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("head", CLASSES)
def test_lines_get_vectors(head, tokenizer, tmp_path):
    write(tmp_path / "model", head, tokenizer)
    (tmp_path / "lines.txt").write_text("One line.\nAnother.\n")
    words = [f"--{name}={tmp_path / path}" for name, path in
             (("model", "model"), ("input", "lines.txt"), ("out", "vectors.npy"))]  # fmt: skip
    assert cli.main(["embed", *words]) == DONE
    vectors = np.load(tmp_path / "vectors.npy")
    assert (vectors.shape, vectors.dtype) == ((2, 32), np.float32)
    assert np.isfinite(vectors).all()


def test_a_run_starts_from_either(tmp_path):
    """Every tensor is read; a run takes those of the groups that it has."""
    store = small_store(tmp_path / "store")
    changes = {f"model.{name}": value for name, value in
               {"layout": "electra", "embedding_size": 16}.items()}  # fmt: skip
    config = small_config(store).replace({**changes, "data.pairing": "full_sentences"})
    model = dataclasses.replace(config.model, pad_vocab_to_multiple_of=1)
    tokenizer = Tokenizer.load(store.tokenizer_path)
    for head in CLASSES:
        params = random_params(model, (head,))
        export(params, model, tokenizer, tmp_path / head, card=Card(objectives=(head,)))
        run = config.replace({"init": str(tmp_path / head)})
        initial = find_initial(run, Workdir.open(tmp_path / "run"), StoreData(store)).read()
        assert initial.groups == {"encoder", head}
        wanted = by_path({"params": params})
        assert initial.leaves.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(initial.leaves[name], array, err_msg=name)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("head", CLASSES)
@pytest.mark.parametrize("width", [16, 0])
def test_transformers_reads_an_export_and_its_folder_is_read_back(head, width, tokenizer, tmp_path):
    from transformers_log import load_quietly

    write(tmp_path / "out", head, tokenizer, embedding_size=width)
    auto = {"rtd": "AutoModelForPreTraining", "mlm": "AutoModelForMaskedLM"}[head]
    theirs = load_quietly(tmp_path / "out", auto)
    assert type(theirs).__name__ == CLASSES[head]
    theirs.save_pretrained(tmp_path / "again")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "again" / file).write_bytes((tmp_path / "out" / file).read_bytes())
    command = ["convert", "import", f"--from={tmp_path / 'again'}", f"--out={tmp_path / 'back'}"]
    assert cli.main(command) == DONE
    first, second = (
        safetensors.numpy.load_file(tmp_path / folder / "model.safetensors")
        for folder in ("out", "back")
    )
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)
    from_json, back = (
        json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("out", "back")
    )
    assert read(from_json) == read(back)
