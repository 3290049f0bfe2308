"""`bert-jax evaluate`: checkpoints and models on held-out text, one form or several."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from corpus import small_store, two_phases

from bert_jax import cli
from bert_jax.checkpoint import catalog, manager
from bert_jax.checkpoint.manager import read_own_meta
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.metrics import spread
from bert_jax.metrics.neighbor_attention import SIDES
from bert_jax.training import evaluate as evaluation
from bert_jax.training import per_example
from bert_jax.training.loop import pretrain
from bert_jax.workdir import description


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def run(store, tmp_path_factory) -> Path:
    """Two phases, evaluated and saved at 4, 6 (the end of the first), 8 and 12."""
    config = two_phases(store)
    config = dataclasses.replace(
        config,
        evaluation=dataclasses.replace(config.evaluation, every_steps=4, batches=2, attention=True),
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=4, keep=9),
    )
    workdir = tmp_path_factory.mktemp("run")
    pretrain(config, workdir)
    return workdir


def records(run: Path, name: str, kind: str) -> list[dict]:
    lines = (run / name).read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def evaluate(run: Path, capsys, *words: str) -> tuple[int, list[dict], str, str]:
    """Exit code, the records that were added, output, errors."""
    log = run / "evaluations.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    code = cli.main(["evaluate", f"--workdir={run}", *words])
    out, err = capsys.readouterr()
    added = records(run, log.name, "evaluate")[before:] if log.exists() else []
    return code, added, out, err


@pytest.mark.slow
def test_all_checkpoints_give_what_training_logged(run, capsys):
    code, added, out, _ = evaluate(run, capsys, "--all", "--batches=2")
    assert code == 0
    logged = records(run, "metrics.jsonl", "eval")
    assert [(r["step"], r["phase"]) for r in added] == [(4, 0), (6, 0), (8, 1), (12, 1)]
    assert [r["seq_length"] for r in added] == [16, 16, 32, 32]
    for measured, trained in zip(added, logged, strict=True):
        for name, value in trained.items():
            if name not in ("kind", "time"):
                assert measured[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    assert all(r["documents"] > 1 and r["mlm/count"] > r["mlm/loss_margin"] > 0 for r in logged)
    *lines, margins, without = out.splitlines()[-7:]
    assert margins.startswith("±: half of a 95 % interval")
    assert "baselines over all held-out tokens: unigram" in without
    assert ", bigram " in without
    for heading in (
        "step",
        "phase",
        "MLM loss",
        "unigram",
        "NSP loss",
        "wiki accuracy",
        "books accuracy",
        "wiki loss",
    ):
        assert heading in lines[0]
    for line, record in zip(lines[1:], added, strict=True):
        assert line.split()[:3] == [
            str(record["step"]),
            str(record["phase"] + 1),
            str(record["seq_length"]),
        ]
        assert f"{record['mlm/loss']:.4f}" in line


def test_a_table_leaves_out_what_a_record_lacks():
    """As records of earlier versions, and means that are not finite."""
    own = {"form": "own", "step": 4, "phase": 0, "seq_length": 16, "rows": 8}
    found = {"mlm/loss": None, "mlm/accuracy": 0.5, "mlm/baseline_loss": 2.0}
    *_, line = evaluation._table([own | found], ["wiki"]).splitlines()
    assert line.split() == ["4", "1", "16", "8", "-", "-", "-", "2.0000", "50.00%", "-"]
    found |= {"mlm/wiki/loss": 1.5, "mlm/wiki/loss_margin": 0.25}
    header, line = evaluation._table([own | found], ["wiki", "books"]).splitlines()
    assert header.split()[-2:] == ["wiki", "loss"]
    assert line.endswith("1.5000 ± 0.2500")


@pytest.mark.slow
def test_the_attention_on_neighbours_is_logged_and_drawn(run, capsys):
    logged = records(run, "metrics.jsonl", "eval")
    names = [key for key in logged[0] if key.startswith("attention/")]
    assert names == [f"attention/layer_0/head_{h}/{side}" for side in SIDES for h in range(2)]
    assert all(0 < record[name] < 1 for record in logged for name in names)
    assert cli.main(["status", f"--workdir={run}", f"--html={run}.html"]) == 0
    assert "Attention on neighbours" in Path(f"{run}.html").read_text()


def test_each_checkpoint_is_listed_and_its_metadata_read_once(run, capsys, monkeypatch):
    listed, read, described = [], [], []
    read_description = description.read_description
    monkeypatch.setattr(
        description,
        "read_description",
        lambda path: (described.append(path), read_description(path))[1],
    )
    complete_steps, read_meta = manager.complete_steps, catalog._read_meta_once
    monkeypatch.setattr(
        manager, "complete_steps", lambda path: (listed.append(path), complete_steps(path))[1]
    )
    monkeypatch.setattr(
        catalog, "_read_meta_once", lambda path, step: (read.append(step), read_meta(path, step))[1]
    )
    steps = [r["step"] for r in evaluate(run, capsys, "--all", "--batches=1")[1]]
    assert len(listed) == len(described) == 1
    assert read == steps == [4, 6, 8, 12]


def test_one_checkpoint_newest_best_or_any(run, capsys):
    assert [r["step"] for r in evaluate(run, capsys)[1]] == [12]
    assert [r["step"] for r in evaluate(run, capsys, "--step=8")[1]] == [8]
    second = [r for r in records(run, "metrics.jsonl", "eval") if r["phase"] == 1]
    best = min(second, key=lambda r: r["loss"])["step"]
    (record,) = evaluate(run, capsys, "--best")[1]
    assert record["step"] == best
    assert record["rows"] > 8  # all of it by default


@pytest.mark.slow
def test_a_run_with_a_kernel_is_evaluated_on_devices_without_it(run, capsys, monkeypatch):
    def trained_elsewhere(*words) -> dict:
        meta = read_own_meta(*words)
        config = meta["config"]
        model = config["model"] | {"attention_probs_dropout_prob": 0.0}
        compute = config["compute"] | {"attention": "pallas"}
        return meta | {"config": config | {"model": model, "compute": compute}}

    monkeypatch.setattr(evaluation, "read_own_meta", trained_elsewhere)
    code, added, _, err = evaluate(run, capsys)
    assert (code, [r["step"] for r in added]) == (0, [12]), err


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["full_sentences", "single"])
def test_another_pairing_measures_masked_tokens_only(pairing, run, capsys):
    code, (record,), out, _ = evaluate(run, capsys, f"--pairing={pairing}", "--masking=whole_word")
    assert code == 0
    assert (record["pairing"], record["masking"]) == (pairing, "whole_word")
    assert np.isfinite(record["mlm/loss"])
    assert not [name for name in record if name.startswith("nsp")]
    assert "NSP" not in out


@pytest.mark.slow
def test_the_values_of_every_example_add_up_to_the_evaluation(run, store, capsys, tmp_path):
    """In every form; in the order of the text, each with the document of its first token."""
    file, forms = tmp_path / "examples.npz", ("own", "single/span:16", "full_sentences/token@0.4")
    words = [f"--form={form}" for form in forms]
    code, plain, out, err = evaluate(run, capsys, *words)
    assert code == 0, err
    assert [record["form"] for record in plain] == list(forms)
    code, found, *_ = evaluate(run, capsys, *words, f"--per_example={file}")
    assert code == 0
    by_form, about = per_example.read_losses(file)
    assert list(by_form) == list(forms)
    assert (about["step"], about["sources"]) == (12, ["wiki", "books"])
    for one, other in zip(plain, found, strict=True):
        examples = by_form[one["form"]]
        assert len(examples.document) == len(examples.source) == one["rows"]
        assert (np.diff(examples.document) >= 0).all()
        assert set(examples.document) <= set(range(8))
        sources = store.held_out.document_source[examples.document]
        np.testing.assert_array_equal(examples.source, sources)
        assert list(examples.sums) == (["mlm", "nsp"] if one["form"] == "own" else ["mlm"])
        for name, sums in examples.sums.items():
            count = sums["count"].sum()
            loss, accuracy = sums["loss"].sum() / count, sums["correct"].sum() / count
            assert loss == pytest.approx(one[f"{name}/loss"], rel=1e-6)
            assert accuracy == pytest.approx(one[f"{name}/accuracy"], rel=1e-6)
            for number, source in enumerate(about["sources"]):
                inside = examples.source == number
                count = sums["count"][inside].sum() * one[f"{name}/{source}/loss"]
                assert sums["loss"][inside].sum() == pytest.approx(count, rel=1e-6)
                document = examples.document[inside]
                both = (np.bincount(document, sums[x][inside]) for x in ("loss", "count"))
                margin = spread.margin(*both)
                wanted = pytest.approx(margin, rel=1e-6) if math.isfinite(margin) else None
                assert one[f"{name}/{source}/loss_margin"] == wanted
        for name, value in one.items():
            if isinstance(value, float) and not name.startswith(("attention/", "time")):
                assert other[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    span = about["forms"]["single/span:16"]
    assert span["settings"]["span_success"] == 0.2
    assert span["metrics"]["mlm/baseline_loss"] == found[1]["mlm/baseline_loss"]
    assert f"{about['bigram_loss']:.3f} nats" in out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("token", "give own or PAIRING/MASKING, such as single/token"),
        ("singel/token", "'singel' does not exist; did you mean single?"),
        ("single/spam", "'spam' does not exist; did you mean span?"),
        ("single/span@15%", "such as single/token, single/span@0.4 or single/token:128"),
        ("single/span@0", "0 is not a share of the tokens"),
        ("single/span:64", "exceeds config.model.max_position_embeddings=32"),
    ],
)
def test_a_form_that_does_not_exist_is_one_line(name, reason, run, capsys):
    code, _, _, err = evaluate(run, capsys, f"--form={name}")
    assert (code, err.count("\n")) == (1, 1)
    assert reason in err


@pytest.mark.slow
def test_a_model_is_measured_as_its_run(run, store, capsys, tmp_path):
    """The run by --model, with nothing written into it; and its export, by the defaults of a
    folder, which are the shape of the last phase."""
    _, (own,), _, _ = evaluate(run, capsys)
    assert cli.main(["convert", "export", f"--workdir={run}", f"--out={tmp_path / 'out'}"]) == 0
    before = (run / "evaluations.jsonl").read_bytes()
    for model in (f"{run}@12", f"{tmp_path}/out"):
        capsys.readouterr()
        words = ["evaluate", f"--model={model}", f"--store={store.path}", "--json"]
        assert cli.main(words) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        found = {(row["measure"], row["model"]): row for row in rows}
        for name, trivial in (("mlm", "unigram"), ("nsp", "constant")):
            for what in ("loss", "accuracy"):
                row = found[f"{name.upper()} {what}", model]
                value, margin = own[f"{name}/{what}"], own[f"{name}/{what}_margin"]
                assert row["value"] == pytest.approx(value, abs=1e-6)
                assert row["n"] == own[f"{name}/count"]
                assert row["low"] == pytest.approx(max(value - margin, 0), abs=1e-6)
                baseline, key = found[f"{name.upper()} {what}", trivial], f"{name}/baseline_{what}"
                assert baseline["value"] == pytest.approx(own[key], abs=1e-6)
                least = max(own[key] - own[f"{key}_margin"], 0)
                assert baseline["low"] == pytest.approx(least, abs=1e-6)
        assert all(row["low"] < row["value"] < row["high"] for row in rows)
        assert found["loss of all held-out tokens", "bigram"]["n"] == len(store.held_out.tokens)
    assert (run / "evaluations.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_model_is_measured_in_other_forms(run, store, capsys):
    """A limit of --batches counts as in the run; the table names each form."""
    forms = ("--form=single/span", "--form=full_sentences/token:16")
    _, added, _, _ = evaluate(run, capsys, *forms, "--batches=1")
    words = ["evaluate", f"--model={run}", f"--store={store.path}", "--batches=1", *forms]
    assert cli.main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    losses = [row["value"] for row in rows if row["measure"].startswith("MLM loss (")]
    assert losses[::2] == pytest.approx([record["mlm/loss"] for record in added], abs=1e-6)


def test_a_store_of_another_vocabulary_is_one_line(run, capsys, tmp_path):
    """With the first entry that differs."""
    other = small_store(tmp_path / "other", words="v")
    assert cli.main(["evaluate", f"--model={run}", f"--store={other.path}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "its vocabulary is not the model's: entry 5 of the model's vocabulary is 'w0'" in line
    assert "that of the store is 'v0'; build the store with the tokenizer of" in line


def test_a_file_of_examples_replaces_only_another_one(run, capsys, tmp_path):
    file = tmp_path / "notes.npz"
    file.write_text("mine")
    code, _, _, err = evaluate(run, capsys, f"--per_example={file}")
    assert (code, "not a file of examples of bert-jax; choose another name" in err) == (1, True)
    assert file.read_text() == "mine"
    with pytest.raises(UserError, match="not a file of `bert-jax evaluate --per_example`"):
        per_example.read_losses(file)
    code, _, _, err = evaluate(run, capsys, f"--per_example={tmp_path / 'a.npz'}", "--all")
    assert (code, "--per_example and --all together" in err) == (2, True)
    code, _, _, err = evaluate(run, capsys, "--form=single/span", "--masking=span")
    assert (code, "--form and --masking together" in err) == (2, True)


def test_what_cannot_be_evaluated_is_one_line(run, store, capsys, tmp_path):
    code, _, _, err = evaluate(run, capsys, "--step=5")
    assert (code, "complete steps: 4, 6, 8, 12" in err) == (1, True)
    code, _, _, err = evaluate(run, capsys, "--step=4", "--all")
    assert (code, "--step and --all together" in err) == (2, True)
    code, _, _, err = evaluate(run, capsys, "--pairing=sop")
    assert (code, "no head for it, as the run was trained with pairing=nsp" in err) == (1, True)
    other = small_store(tmp_path / "other", words="v")
    code, _, _, err = evaluate(run, capsys, f"--store={other.path}")
    assert (code, "give a store built with that tokenizer" in err) == (1, True)
    code, _, _, err = evaluate(tmp_path, capsys)
    assert (code, "no checkpoints found" in err) == (1, True)


@pytest.mark.slow
def test_other_held_out_text_is_said(run, capsys, tmp_path):
    other = small_store(tmp_path / "other", repeat=True)
    code, added, out, _ = evaluate(run, capsys, f"--store={other.path}", "--batches=1")
    assert code == 0
    assert "note: the held-out text" in out
    assert added[0]["held_out"] == other.held_out.digest
