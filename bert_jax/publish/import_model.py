"""`bert-jax convert import`: brings a released model into a folder like that of an export.

The result is read by `bert_jax.load`, by transformers and as the start of a run.
"""

from pathlib import Path

import numpy as np

from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.google_bert import read_adam
from bert_jax.convert.google_files import is_google_bert
from bert_jax.convert.hf_config import LENGTH, ORIGIN
from bert_jax.convert.model_folders import local_folder
from bert_jax.convert.reader import StoredModel
from bert_jax.convert.sources import read_stored
from bert_jax.data_pipeline.settings import shown, shown_name
from bert_jax.errors import UserError
from bert_jax.objectives.known_objectives import with_heads
from bert_jax.publish.export import EXPORT, export
from bert_jax.publish.model_card import Card
from bert_jax.storage import hub
from bert_jax.storage.outputs import check_output
from bert_jax.training.optimizer_state import OptimizerState, of_moments


def run_import(source: str, out: Path | str, *, optimizer_state: bool = False) -> None:
    """Imports a model and prints the result.

    Args:
        source: as `local_folder`.
        out: the folder to write; an earlier import or export is replaced.
        optimizer_state: the moments and the step too, for `config.init_optimizer`.

    Raises:
        UserError: no such model, or it is damaged, of another family, or has a part that bert-jax
            has not; it has no moments; or as `export`.
        StorageError: the folder cannot be written; an older one is unchanged.
    """
    check_output(out, EXPORT, inputs=[] if hub.is_hub(source) else [source])
    with local_folder(source) as folder:
        model = read_stored(folder)
        _check_complete(model, source)
        params = weights.from_transformers(model.tensors, model.config, model.pad_token_id)
        left_out = weights.unread(model.tensors, model.config)
        before = _rows_before(model)
        config, tokenizer, values = model.config, model.tokenizer, model.values
        sentence, not_read = model.sentence, model.left_out
        origin = source
        if hub.is_hub(source):
            origin = hub.origin_of(hub.parse_model(source))
            values = {**values, ORIGIN: origin}
        length = values.get(LENGTH)  # of an export of ours
        known = type(length) is int and 0 < length <= config.max_position_embeddings
        card = Card(origin=origin, length=length if known else None, objectives=with_heads(params))
        del model  # its tensors; the export makes its own
        adam = _read_adam(folder, config, source) if optimizer_state else None
        export(
            params, config, tokenizer, out,
            card=card, rows_before=before, source=values, optimizer=adam, sentence=sentence,
        )  # fmt: skip
    parts = ["encoder", *map(weights.title, sorted(weights.groups_in(params) - {"encoder"}))]
    if adam:
        parts.append(f"the optimizer's moments and step {adam.step:,}")
    if sentence:
        parts.append(f"of a sentence encoder: {sentence.titles}")
    if not_read:
        print(f"left out: {', '.join(not_read)}")
    if left_out:
        print(f"left out, since no head reads it: {', '.join(left_out)}")
    print(f"{source} imported to {out}: {', '.join(parts)}")


def _read_adam(folder: Path, config: ModelConfig, source: str) -> OptimizerState:
    """Reads the optimizer's state; UserError if the source has none."""
    if not is_google_bert(folder):
        raise UserError(
            f"{source}: --optimizer_state takes the moments of a TensorFlow checkpoint of "
            "google-research/bert; config.init takes those of an export or a workdir as they are"
        )
    adam = read_adam(folder)
    mu, nu = (weights.from_transformers(moments, config) for moments in adam.moments)
    return of_moments(mu, nu, adam.step)


def _rows_before(model: StoredModel) -> np.ndarray | None:
    """Returns the rows of the position table that no text uses, which the result keeps; None if it
    will have another number of them, because config.json has another padding id."""
    pad = model.tokenizer.special.pad
    if pad != model.pad_token_id:
        return None
    return weights.rows_before_positions(model.tensors, model.config, pad)


def _check_complete(model: StoredModel, source: str) -> None:
    """Raises UserError if the result would lack a part of the model."""
    lost = weights.leftover(model.tensors, model.config)
    if lost:
        more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        named = model.values.get("architectures")
        kind = f" in a {shown(named[0])}" if isinstance(named, list) and named else ""
        raise UserError(
            f"{source}: bert-jax has no parameter for {shown_name(lost[0])}{more}{kind}; nothing "
            "was written"
        )
