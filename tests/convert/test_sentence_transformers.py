"""Folders of sentence vectors in sentence-transformers itself, and those that it writes in ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import sentence_library as library
from exported import TEXTS, random_params
from layout_models import LAYOUTS, layout_config
from small import model_config
from small_task import pairs_config, write_pairs
from task_steps import batches_of

import bert_jax
from bert_jax.config.schema import ComputeConfig
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import init_params
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

pytestmark = [pytest.mark.nightly, pytest.mark.processes]
TOLERANCE = 1e-5
LONGEST = 32  # tokens of `pairs_config`
SENTENCES = [*TEXTS, "x y, " * LONGEST, " A dog."]  # one is longer than the longest text
PROMPTS = {"task__query_prompt": "Query: ", "task__passage_prompt": "a passage: "}
# What a run trained: its task and settings. Each is also the name of a layout or begins with one.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(LAYOUTS, ("sentence_pairs", PROMPTS)),
    "bert, max pooling": ("labeled_pairs", {"task__pooling": "max"}),
    "bert, last token": ("labeled_pairs", {"task__pooling": "lasttoken"}),
    "bert, pools": (
        "sentence_pairs", {"task__pooling": "cls,mean_sqrt_len_tokens,weightedmean", **PROMPTS},
    ),
    "bert, pools in an order of release 6": ("labeled_pairs", {"task__pooling": "mean,cls,max"}),
    "bert, one prompt": ("scored_pairs", {"task__query_prompt": "Query: "}),
    "bert, a prompt for each sentence": ("scored_pairs", PROMPTS),
    "bert, dense layers": (
        "sentence_pairs", {"task__dense": "24:GELU,12:Identity:no_bias", **PROMPTS},
    ),
    "bert, a residual of release 6": ("scored_pairs", {"task__dense": "24:residual"}),
    "modernbert, cls": (
        "sentence_pairs", {"task__pooling": "cls", "task__normalize": False, **PROMPTS},
    ),
}  # fmt: skip
# The library's own note on a prompt for all texts, which is meant.
NOTE = "Default prompt name is set to"


class Asked(NamedTuple):
    """Vectors that are asked of both programs."""

    folder: str
    side: str = ""  # of `encode_query` and `encode_document`
    prompt_name: str | None = None


def asked_of(name: str, newest: bool) -> list[Asked]:
    _, settings = RUNS[name]
    has_two = "task__passage_prompt" in settings
    if not has_two or not newest:
        names = ("query", "passage") if has_two else ()
        return [Asked(name), *(Asked(name, prompt_name=one) for one in names)]
    return [Asked(name), Asked(name, "query"), Asked(name, "document")]


@library.WITH_EACH_RELEASE
def test_folders_of_runs_have_our_vectors_without_a_warning(
    packages: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    task, folders = write_pairs(tmp_path / "task"), {}
    newest = library.release(packages) >= 5
    runs = {name: run for name, run in RUNS.items() if newest or "of release 6" not in name}
    for name, (kind, settings) in runs.items():
        config, _ = batches_of(pairs_config(task, kind, **settings))
        sizes = {"hidden_size": config.model.hidden_size, "num_attention_heads": 4}
        layout = name.split(",")[0]
        model = layout_config(layout, vocab_size=tokenizer.vocab_size, **sizes)
        head = init_params(config.model, ComputeConfig(), learned_by(config), jax.random.key(0))
        export(
            random_params(model, ()), model, tokenizer, tmp_path / name,
            card=Card(origin="x"), sentence=encoder_of_run(config, head),
        )  # fmt: skip
        folders[name] = bert_jax.load(tmp_path / name)
    asked = [one for name in runs for one in asked_of(name, newest)]
    requests = [
        {"do": "encode", "texts": SENTENCES, **one._asdict(), "folder": tmp_path / one.folder}
        for one in asked
    ]
    found = library.ask(packages, tmp_path / "asked", requests)
    for one, (theirs, said) in zip(asked, found, strict=True):
        allowed = [NOTE] if "one prompt" in one.folder else []
        assert [text for text in said if not text.startswith(tuple(allowed))] == [], one
        name = one.prompt_name or {"query": "query", "document": "passage"}.get(one.side)
        ours = folders[one.folder].encode(SENTENCES, prompt_name=name)
        np.testing.assert_allclose(theirs["vectors"], ours, atol=TOLERANCE, err_msg=str(one))


WIDTH = model_config().hidden_size
Parts = Sequence[tuple[str, dict[str, Any]]]


def pool(*modes: str, newest: bool, **more: Any) -> tuple[str, dict[str, Any]]:
    if newest:
        return "Pooling", {"embedding_dimension": WIDTH, "pooling_mode": modes, **more}
    names = {
        "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "lasttoken": "lasttoken",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "weightedmean": "weightedmean_tokens",
    }  # fmt: skip
    flags = {f"pooling_mode_{name}": mode in modes for mode, name in names.items()}
    return "Pooling", {"word_embedding_dimension": WIDTH, **flags, **more}


def folders_of(newest: bool) -> dict[str, dict[str, Any]]:
    """Modules and further settings of folders that the library writes."""
    modes = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    mean = pool("mean", newest=newest)
    made: dict[str, dict[str, Any]] = {
        mode: {"parts": [pool(mode, newest=newest)]} for mode in modes
    }
    dense = {"in_features": WIDTH, "out_features": 5, "activation_function": "Tanh"}
    wide = {"in_features": 2 * WIDTH, "out_features": 7, "activation_function": "Identity"}
    two = pool("cls", "mean", newest=newest)
    made |= {
        "every pool": {"parts": [pool(*modes, newest=newest), ("Normalize", {})]},
        "dense": {"parts": [mean, ("Dense", dense), ("Normalize", {})]},
        "dense without bias": {"parts": [two, ("Dense", {**wide, "bias": False})]},
        "dropout": {"parts": [mean, ("Dropout", {"dropout": 0.2})]},
        "another similarity": {"parts": [mean], "similarity_fn_name": "dot"},
        "cut and lower-cased": {"parts": [mean], "max_seq_length": 9, "lowercase": True},
        "prompts": {
            "parts": [mean, ("Normalize", {})],
            "prompts": {"query": "hello ", "document": "world: "},
            "default_prompt_name": "query",
        },
        "a prompt that is not pooled": {
            "parts": [pool("mean", "lasttoken", newest=newest, include_prompt=False)],
            "prompts": {"query": "hello "},
            "default_prompt_name": "query",
        },
    }
    if newest:
        order = [pool("mean", "cls", newest=True)]
        residual = {**dense, "use_residual": True, "activation_function": "GELU"}
        made |= {
            "in another order": {"parts": order},
            "residual": {"parts": [mean, ("Dense", residual)]},
            "fewer numbers": {"parts": [mean], "truncate_dim": 6},
        }
    return made


@library.WITH_EACH_RELEASE
def test_folders_of_sentence_transformers_have_its_vectors(
    packages: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    cased = layout_config("bert", vocab_size=tokenizer.vocab_size)
    export(random_params(cased), cased, tokenizer, tmp_path / "bert", card=Card(origin="x"))
    newest = library.release(packages) >= 5
    made = folders_of(newest)
    about = {"do": "save", "texts": SENTENCES, "encoder": tmp_path / "bert"}
    requests = [{**about, "out": tmp_path / name, **given} for name, given in made.items()]
    found = library.ask(packages, tmp_path / "asked", requests)
    for name, (theirs, _) in zip(made, found, strict=True):
        ours = bert_jax.load(tmp_path / name).encode(SENTENCES)
        # Before release 5, lower-casing is of the whole text: "[mask]" is no special token.
        same = [newest or not made[name].get("lowercase") or "[MASK]" not in s for s in SENTENCES]
        assert_equal(theirs["vectors"][same], ours[same], name)


def assert_equal(theirs: np.ndarray, ours: np.ndarray, name: str) -> None:
    size = max(1.0, float(np.abs(theirs).max()))  # sums over a text are larger than 1
    np.testing.assert_allclose(ours / size, theirs / size, atol=TOLERANCE, err_msg=name)
