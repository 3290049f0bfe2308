"""Reads a model of google-research/bert: bert_config.json, vocab.txt and a TensorFlow checkpoint.

Its names are those of modeling.py and run_pretraining.py (commit eedf571), as in
`transformers.models.bert.convert_bert_original_tf_checkpoint_to_pytorch`. Kernels are [in, out];
the two output matrices of run_pretraining.py are [out, in].
"""

import re
from pathlib import Path

from bert_jax.convert.hf_config import from_config_json
from bert_jax.convert.reader import StoredModel, read_json
from bert_jax.convert.tensorflow.checkpoint import LazyTensor, TensorFlowCheckpoint
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"
FILES = re.compile(r"bert_config\.json|vocab\.txt|.+\.ckpt.*\.(index|data-\d{5}-of-\d{5})")
_STATE = re.compile(r".*/adam_[mv]|global_step")  # of the optimizer
_NAMES = (  # parts of its names and of transformers', in order
    ("/", "."),
    ("layer_", "layer."),
    ("_embeddings", "_embeddings.weight"),
    (".kernel", ".weight"),
    ("predictions.output_bias", "predictions.bias"),
    ("seq_relationship.output_weights", "seq_relationship.weight"),
    ("seq_relationship.output_bias", "seq_relationship.bias"),
)


def is_google_bert(folder: Path) -> bool:
    """Whether the folder holds a model of google-research/bert."""
    return (folder / CONFIG).is_file()


def read_google_bert(folder: Path) -> StoredModel:
    """Reads a folder with a released model, or one that run_pretraining.py wrote.

    Raises:
        UserError: a file is missing or damaged, or there is not exactly one checkpoint.
    """
    values = {**read_json(folder / CONFIG), "model_type": "bert"}
    config = from_config_json(values, str(folder / CONFIG))
    checkpoint = TensorFlowCheckpoint(_prefix(folder))
    tensors = {
        _their_name(name): LazyTensor(checkpoint, name, transposed=name.endswith("/kernel"))
        for name in checkpoint.entries
        if not _STATE.fullmatch(name)
    }
    tokenizer = Tokenizer.load(folder / VOCABULARY)
    return StoredModel(config, tensors, tokenizer, tokenizer.special.pad)


def _their_name(name: str) -> str:
    """Returns the name of a tensor in transformers."""
    for own, theirs in _NAMES:
        name = name.replace(own, theirs)
    return name


def _prefix(folder: Path) -> Path:
    """Returns the path of the folder's checkpoint without its suffix."""
    found = sorted(folder.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(
            f"{folder}: needs one TensorFlow checkpoint (*.index), has {names}; leave one there"
        )
    return found[0].with_suffix("")
