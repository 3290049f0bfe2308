"""Exports in other programs: pipelines, sentence-transformers, and old releases of transformers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentence_library as library
from exported import random_params
from layout_models import EVERY, LAYOUTS, layout_config, task_config, task_params

import bert_jax
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

ROOT = Path(__file__).resolve().parents[2]
# By release, the folder that `make FOLDER` fills.
OLD = {
    "4.57.": Path(os.environ.get("BERT_JAX_PEER", ROOT / ".venv/peer")),
    "4.48.": Path(os.environ.get("BERT_JAX_TRANSFORMERS_OLD", ROOT / ".venv/transformers_old")),
}
NOT_IN_4_48 = {"ModernBertForQuestionAnswering", "ModernBertForMultipleChoice"}
TEXTS = ["hello world", "naïve café [MASK] and 3.14, hello again", "."]

pytestmark = pytest.mark.filterwarnings("default")


def write(out: Path, layout: str, tokenizer: Tokenizer, learned: tuple[str, ...]) -> Path:
    config = layout_config(layout, vocab_size=tokenizer.vocab_size)
    export(random_params(config, learned), config, tokenizer, out, card=Card(objectives=learned))
    return out


def write_task(out: Path, layout: str, tokenizer: Tokenizer, task: str, **changes: object) -> Path:
    config = task_config(layout, task, vocab_size=tokenizer.vocab_size, **changes)
    export(task_params(config), config, tokenizer, out, card=Card(objectives=(task,)))
    return out


@pytest.mark.torch
@pytest.mark.parametrize("learned", [("mlm",), ("mlm", "nsp", "sbo")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fill_mask_pipeline_gives_our_fills(layout, learned, tokenizer, tmp_path):
    from transformers import pipeline

    folder = write(tmp_path / "out", layout, tokenizer, learned)
    model = bert_jax.load(folder)
    (ours,) = model.fill_mask(TEXTS[1], top_k=4)
    theirs = pipeline("fill-mask", str(folder), top_k=4)(TEXTS[1])
    tokens = [model.tokenizer.token(fill["token"]) for fill in theirs]
    assert tokens == [fill.token for fill in ours]
    probabilities = [fill.probability for fill in ours]
    np.testing.assert_allclose([fill["score"] for fill in theirs], probabilities, rtol=1e-4)


@pytest.mark.nightly
@pytest.mark.processes
@library.WITH_EACH_RELEASE
def test_sentence_transformers_gives_our_vectors(packages, tokenizer, tmp_path):
    folders = [write(tmp_path / layout, layout, tokenizer, ("mlm",)) for layout in LAYOUTS]
    requests = [{"do": "encode", "texts": TEXTS, "folder": folder} for folder in folders]
    found = library.ask(packages, tmp_path / "asked", requests)
    for folder, (theirs, _) in zip(folders, found, strict=True):
        ours = bert_jax.load(folder).encode(TEXTS)
        np.testing.assert_allclose(ours, theirs["vectors"], atol=1e-5, err_msg=folder.name)


# Prints, for each folder, what the class in its config.json reports and computes; its name alone if
# there is no such class. 4.x warns of its own classes of masked language models.
LOAD = """
import json, logging, sys
from pathlib import Path
import torch
import transformers
transformers.logging.disable_progress_bar()
own = lambda record: "has generative capabilities" not in record.getMessage()
logging.getLogger("transformers").handlers[0].addFilter(own)
results = {"version": transformers.__version__}
for folder in sys.argv[1:]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    (name,) = json.loads(Path(folder, "config.json").read_text())["architectures"]
    results[folder] = {"class": name}
    if not (cls := getattr(transformers, name, None)):
        continue
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    text = "hello world " * 15  # longer than three windows
    inputs = tokenizer(text, truncation=True, max_length=30, return_tensors="pt")
    if name.endswith("MultipleChoice"):
        inputs = {key: value[None] for key, value in inputs.items()}
    with torch.no_grad():
        out = model.eval()(**inputs)
    results[folder] |= {
        "ids": inputs["input_ids"].flatten().tolist(),
        "problems": [k for k, v in info.items() if v],
        "outputs": [x.flatten().tolist() for x in out.to_tuple()],
    }
print(json.dumps(results))
"""


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("release", OLD)
def test_old_transformers_load_every_class_that_they_have(release, tokenizer, tmp_path):
    """Without a message, and compute what the installed one does."""
    pytest.importorskip("torch")
    if not (OLD[release] / "transformers").is_dir():
        pytest.skip(f"{OLD[release]}: no transformers; `make .venv/{OLD[release].name}`")
    folders = []
    for layout in LAYOUTS:
        for learned in (("mlm",), ("mlm", "nsp", "sbo")):
            out = tmp_path / f"{layout}-{'-'.join(learned)}"
            folders.append(write(out, layout, tokenizer, learned))
        tasks = [task for one, task in EVERY if one == layout]
        folders += [write_task(tmp_path / f"{layout}-{x}", layout, tokenizer, x) for x in tasks]
    mean = tmp_path / "modernbert-mean"  # of the states of all tokens, as the released models
    task = "single_label_classification"
    folders.append(write_task(mean, "modernbert", tokenizer, task, classifier_pooling="mean"))
    old, newest = (said_by(path, folders) for path in ([str(OLD[release])], []))
    assert old.pop("version").startswith(release)
    del newest["version"]
    assert old.keys() == newest.keys() == set(map(str, folders))
    absent = {found["class"] for found in old.values() if "ids" not in found}
    assert absent == (NOT_IN_4_48 if release == "4.48." else set())
    for folder, found in old.items():
        wanted = newest[folder]
        if found["class"] in absent:
            continue
        assert found["problems"] == wanted["problems"] == [], folder
        assert found["ids"] == wanted["ids"], folder
        for output, reference in zip(found["outputs"], wanted["outputs"], strict=True):
            np.testing.assert_allclose(output, reference, atol=1e-5, err_msg=folder)


def said_by(path: list[str], folders: list[Path]) -> dict:
    """What `LOAD` prints with a transformers in `path`; fails if it warns."""
    command = [sys.executable, "-c", LOAD, *map(str, folders)]
    places = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": places, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)
