"""Names that are no configuration keys: the key that was meant, or none."""

import pytest

from bert_jax.config import unknown_keys
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.errors import nearest, nearest_name

KEYS = flatten(to_dict(Config()))


def test_every_translation_names_a_key() -> None:
    assert set(unknown_keys._TABLE["keys"]) <= set(KEYS)
    for text in unknown_keys._TABLE["advice"].values():
        words = [word.rstrip(",:;").partition("=")[0] for word in text.split()]
        keys = [word.removeprefix("{}") for word in words if word.startswith("{}")]
        assert set(keys) <= set(KEYS)


def test_no_name_has_two_translations() -> None:
    names = " ".join(
        [*unknown_keys._TABLE["keys"].values(), *unknown_keys._TABLE["advice"]]
    ).split()
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("optimizer.lr", "; did you mean optimizer.learning_rate?"),
        ("optimizer.wd", "; did you mean optimizer.weight_decay?"),
        ("learning_rate", "; did you mean optimizer.learning_rate?"),
        ("batch-size", "; did you mean phases[0].batch_size?"),
        ("max_steps", "; did you mean phases[0].steps?"),
        ("data.max_seq_length", "; did you mean phases[0].seq_length?"),
        ("mlm_probability", "; did you mean data.mask_rate?"),
        ("SEED", "; did you mean seed?"),
        ("model.dropout", "; did you mean model.hidden_dropout_prob?"),
        ("num_train_epochs", "; set phases[0].steps: an epoch has "),
        ("per_device_train_batch_size", "; set phases[0].batch_size, the rows of all devices"),
        ("bf16", "; set compute.dtype=bfloat16"),
        ("model_name_or_path", "; did you mean init?"),
        ("resume_from_checkpoint", "; type the same command again: it resumes"),
        ("base", "; values change those of `base`; a .py file can"),
        ("compute.fp16", "; set compute.dtype=bfloat16; float16 does not exist"),
        ("optimizer.warmup_stpes", "; did you mean optimizer.warmup_steps?"),
        ("optimizer.ema", "; did you mean optimizer.ema_decay?"),
        ("optimizer.max_nonfinite", "; did you mean optimizer.max_nonfinite_steps?"),
        ("model.rope_theta", "; did you mean model.global_rope_theta?"),
        ("data.maskin", "; did you mean data.masking?"),
        ("mesh.foo", "; valid: data, fsdp, slice, tensor"),
        ("nowhere.foo", "; valid: checkpoint, compute, data, deadlines, distillation, "),
    ],
)
def test_the_hint_for_a_name(name: str, hint: str) -> None:
    assert unknown_keys.key_hint(name, KEYS).startswith(hint)


@pytest.mark.parametrize(
    ("name", "valid", "near"),
    [
        ("jsonl", ["wikiextractor", "books", "lines", "python"], None),
        ("huggingface", ["wikiextractor", "books", "lines", "python"], None),
        ("optimizer.lr", ["optimizer.b2", "optimizer.name"], None),
        ("bok", ["books", "lines"], "books"),
        ("BASE", ["base", "large"], "base"),
        ("steps", ["phases[0].steps", "checkpoint.every_steps"], "phases[0].steps"),
        ("x", [], None),
    ],
)
def test_only_a_similar_name_is_suggested(name: str, valid: list[str], near: str | None) -> None:
    assert nearest_name(name, valid) == near
    expected = (
        f"; did you mean {near}?" if near else f"; valid: {', '.join(sorted(valid)) or 'none'}"
    )
    assert nearest(name, valid) == expected
