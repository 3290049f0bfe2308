"""Models of transformers that are imported and loaded again: every class."""

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from late_import import LateImport
from layout_models import LABELS, PREFIXES, TASKS, layout_config, task_config, task_params
from transformers_log import load_quietly

import bert_jax
from bert_jax import cli
from bert_jax.convert.hf_config import to_config_json
from bert_jax.convert.tokenizer_files import tokenizer_files
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

torch = LateImport("torch")
transformers = LateImport("transformers")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]
FAMILIES = {
    **{kind: (kind, prefix) for kind, prefix in PREFIXES.items()},
    "camembert": ("roberta", "Camembert"),
    "xlm-roberta": ("roberta", "XLMRoberta"),
}
CLASSES = {
    **{task: end for task, (_, _, _, end) in TASKS.items()},
    "masked language model": "ForMaskedLM",
    "no head": "Model",
}
OF_BERT = {"pretraining": "ForPreTraining", "next sentence": "ForNextSentencePrediction"}
ENDINGS = CLASSES | OF_BERT
NONE = ("roformer", "multiple_choice")  # ours has no such class
EVERY = [*(x for x in product(FAMILIES, CLASSES) if x != NONE), *product(["bert"], OF_BERT)]
EVERY.append(("albert", "pretraining"))
AGAIN = ("out", "again")
# Of the configuration object, not of the model.
NOT_COMPARED = {"_name_or_path", "transformers_version", "dtype"}


def saved_by_transformers(folder: Path, kind: str, what: str, tokenizer) -> "torch.nn.Module":
    """A model of transformers with random weights of real size, as `save_pretrained` writes it."""
    layout, prefix = FAMILIES[kind]
    pad = tokenizer.special.pad
    if what in TASKS:
        config = task_config(layout, what, vocab_size=tokenizer.vocab_size)
        values = to_config_json(config, pad_token_id=pad, heads={config.head.name})
    else:
        config = layout_config(layout, vocab_size=tokenizer.vocab_size)
        values = to_config_json(config, pad_token_id=pad, heads=())
    values |= {"model_type": kind, "classifier_dropout": 0.15, "qa_dropout": 0.25}
    del values["architectures"]
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(**values)
    model = getattr(transformers, f"{prefix}{ENDINGS[what]}")(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    token_types = config.type_vocab_size > 0
    for name, data in tokenizer_files(tokenizer, 40, token_types=token_types).items():
        (folder / name).write_bytes(data)
    return model


@pytest.mark.parametrize(("kind", "what"), EVERY)
def test_an_import_is_the_same_in_transformers(kind, what, tokenizer, tmp_path):
    """The class, every bit and every setting."""
    saved_by_transformers(tmp_path / "saved", kind, what, tokenizer)
    command = ["convert", "import", f"--from={tmp_path / 'saved'}", f"--out={tmp_path / 'out'}"]
    assert cli.main(command) == 0
    auto = f"AutoModel{ENDINGS[what].removeprefix('Model')}"
    before, after = (load_quietly(tmp_path / name, auto) for name in ("saved", "out"))
    assert type(after) is type(before)
    assert type(after).__name__ == f"{FAMILIES[kind][1]}{ENDINGS[what]}"
    settings = [
        {k: v for k, v in model.config.to_dict().items() if k not in NOT_COMPARED}
        for model in (before, after)
    ]
    assert settings[0] == settings[1]
    states = [model.state_dict() for model in (before, after)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        np.testing.assert_array_equal(states[1][name].numpy(), tensor.numpy(), err_msg=name)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "heads.safetensors" not in names
    again = ["convert", "import", f"--from={tmp_path / 'out'}", f"--out={tmp_path / 'again'}"]
    assert cli.main(again) == 0
    tensors = [safetensors.numpy.load_file(tmp_path / f / "model.safetensors") for f in AGAIN]
    assert tensors[0].keys() == tensors[1].keys()
    for name, tensor in tensors[0].items():
        np.testing.assert_array_equal(tensors[1][name], tensor, err_msg=name)
    first, second = ((tmp_path / f / "config.json").read_text() for f in AGAIN)
    assert first == second


def test_a_model_with_one_token_type_reads_pairs_in_transformers(tokenizer, tmp_path):
    """Of a tokenizer that gives the second text another type."""
    config = task_config("bert", "single_label_classification", vocab_size=tokenizer.vocab_size)
    config = dataclasses.replace(config, type_vocab_size=1)
    export(task_params(config), config, tokenizer, tmp_path / "out", card=Card(origin="test"))
    model = load_quietly(tmp_path / "out", "AutoModelForSequenceClassification")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    pair = ("Hello World!", "Naïve café")
    with torch.no_grad():
        wanted = model.eval()(**read(*pair, return_tensors="pt")).logits.softmax(-1).numpy()[0]
    (found,) = bert_jax.load(tmp_path / "out").predict([pair])
    assert found.label == LABELS[wanted.argmax()]
    assert found.probability == pytest.approx(wanted.max(), abs=1e-5)
