"""Held-out losses of exports and of models that record no form of their training."""

import dataclasses
import json
from pathlib import Path

import pytest
from corpus import small_config, small_store, two_phases
from exported import random_params

from bert_jax import cli
from bert_jax.api.evaluation_table import Evaluation
from bert_jax.api.held_out_evaluation import evaluate_held_out
from bert_jax.config.serialization import to_dict
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.publish.export import export, run_export
from bert_jax.publish.model_card import Card
from bert_jax.training.eval_setting import EvalSetting
from bert_jax.training.loop import pretrain


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def trained(store: TokenStore, place: Path, *, swapped: bool = False, **data: object) -> Path:
    """A float32 run of a step and its export; swapped: of two, with the longer rows first."""
    config = two_phases(store, (1, 1))
    phases = config.phases[::-1] if swapped else config.phases[1:]
    config = dataclasses.replace(
        config,
        phases=phases,
        data=dataclasses.replace(config.data, **data),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=0),
        compute=dataclasses.replace(config.compute, dtype="float32"),
    )
    pretrain(config, place / "run")
    run_export(place / "run", place / "out")
    return place


def measured(found: Evaluation) -> dict[tuple[str, int], list[float]]:
    """The figures of each measure, without the name of the model."""
    figures: dict[tuple[str, int], list[float]] = {}
    for row in found.rows:
        ends = row.found.interval or ()
        figures.setdefault((row.measure, row.n), []).extend([row.found.value, *ends])
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("swapped", "data"),
    [
        (True, {"pairing": "nsp", "mask_rate": 0.3, "random_share": 0.0}),
        pytest.param(
            False,
            {"pairing": "sop", "masking": "span", "mask_rate": 0.25, "span_boundary": True},
            marks=pytest.mark.nightly,
        ),
        (False, {"pairing": "full_sentences", "masking": "whole_word", "mask_rate": 0.4,
                 "separators": "sentences", "short_seq_prob": 0.5}),
    ],
    ids=["nsp", "sop", "full_sentences"],
)  # fmt: skip
def test_an_export_is_measured_as_its_run(
    swapped: bool, data: dict, store: TokenStore, tmp_path: Path
) -> None:
    """Its pairs, masks and length, without a flag."""
    trained(store, tmp_path, swapped=swapped, **data)
    run, export = (evaluate_held_out(str(tmp_path / name), store.path) for name in ("run", "out"))
    assert f"{data['pairing']}/" in export.what
    assert export.what == run.what
    ours, theirs = measured(run), measured(export)
    assert ours.keys() == theirs.keys()
    assert f"{data['pairing'].upper()} loss" in str([*ours]) or data["pairing"] not in "nsp sop"
    for name, figures in ours.items():
        assert theirs[name] == pytest.approx(figures, abs=1e-6), name
    assert not export.notes
    if data["pairing"] == "sop":
        with pytest.raises(UserError, match="as the run was trained with pairing=sop"):
            evaluate_held_out(str(tmp_path / "out"), store.path, pairing="nsp")


def test_what_is_assumed_of_a_model_is_said(store: TokenStore, tmp_path: Path) -> None:
    """Of one that records no form; a form that is none is one line."""
    config = small_config(store)
    tokenizer, file = Tokenizer.load(store.tokenizer_path), tmp_path / "out" / "config.json"
    export(random_params(config.model), config.model, tokenizer, file.parent, card=Card())
    found = evaluate_held_out(str(file.parent), store.path)
    said = "the model does not record how it was trained; nsp/token@0.15:32: "
    assert found.notes == [f"{said}what was not given is assumed"]
    (file.parent / "SHA256SUMS").unlink()
    form, values = EvalSetting.of(config, config.phases[0]).settings(), json.loads(file.read_text())
    for wrong, message in (
        ({**form, "masking": "mine"}, "trained_form of its config.json: .*masking='mine'; valid"),
        ({"masking": "token"}, "seq_length=128 exceeds"),
        ({**form, "new": 1}, "unknown key trained_form.new"),
        ({**form, "seq_length": "long"}, "trained_form.seq_length='long' should be int"),
        ("sop", "trained_form='sop' should be keys"),
    ):
        file.write_text(json.dumps({**values, "trained_form": wrong}))
        with pytest.raises(UserError, match=message):
            evaluate_held_out(str(file.parent), store.path)


@pytest.mark.parametrize(
    "words",
    [
        "evaluate --model=run --store=store",
        "evaluate --model=run --text=lines",
        "fill --model=run [MASK]",
        "embed --model=run --input=lines --out=v.npy",
        "convert import --from=run --out=out",
        "pretrain --config=continue_domain --config.init=run --config.data.store=store "
        "--workdir=next",
    ],
    ids=lambda words: words.split(" --")[0],
)
def test_a_run_without_a_checkpoint_is_one_line(
    words: str,
    store: TokenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("store").symlink_to(store.path)
    Path("lines").write_text("w1 w2\n")
    Path("run").mkdir()
    described = {"config": to_dict(small_config(store)), "data": {}}
    Path("run/config.json").write_text(json.dumps(described))
    Tokenizer.load(store.tokenizer_path).save(Path("run/tokenizer.json"))
    assert cli.main(words.split()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "of a run, and no checkpoint is read from here; train it until it has saved one, or export "
        "it"
    )
