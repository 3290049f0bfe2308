"""benchmarks/: options that are refused, before anything is measured."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest
from benchmark_runs import FOLDER
from stores import store_of_text

sys.path.append(str(FOLDER))

import harness

RACED = ["--minutes=20", "--out=nowhere"]
LEARNED = ["--pretrained=nowhere", "--out=nowhere"]


@pytest.mark.parametrize(
    ("script", "options", "line"),
    [
        ("tpu_compile.py", ["--rows=9"], "--rows=9: give numbers from 1 to 5"),
        ("tpu_compile.py", ["--forms=x"], "--forms=x: give numbers from 0 to 24"),
        ("tpu_compile.py", ["--generators=philox"], "--generators=philox: give some of threefry,"),
        ("tpu_compile.py", ["--layers=0"], "--layers=0: at least one layer is needed"),
        (
            "slices.py",
            ["--models=bse"],
            "no shipped config 'bse'; did you mean base?",
        ),
        ("slices.py", ["--slices=v5e-17"], "--slices: v5e-17 does not exist; nearest: v5e-16"),
        ("ops.py", ["--compile=gelu,relu"], "--compile=relu: give some of attention,layer_norm,"),
        ("train_gpu.py", ["--cases=huge"], "--cases=huge: give some of base,large"),
        ("train_gpu.py", ["--steps=0"], "--steps=0: at least 1 is needed"),
        ("attention_gradient.py", ["--evaluations=0"], "--evaluations=0: at least 1 is needed"),
        ("fill_cost.py", ["--store=x", "--rounds=0"], "--rounds=0: at least 1 is needed"),
        ("counting.py", ["--store=x", "--rounds=0"], "--rounds=0: at least 1 is needed"),
        ("counting.py", ["--store=nowhere"], "nowhere: not a token store"),
        ("learning_variants.py", ["--store=x", "--only=99"], "--only=99: give some of 0,1,2,"),
        ("learning_variants.py", ["--store=x", "--steps=2"], "--steps=2: give a multiple of 3"),
        ("learning_variants.py", ["--store=x", "--steps=1000"], "--steps=1000: give a multiple of"),
        ("learning_variants.py", ["--store=nowhere"], "nowhere: not a token store"),
        ("learning.py", ["--store=x", "--peer=abc"], "--peer=abc: give numbers above 0"),
        ("learning.py", ["--store=x", "--peer=1e-3"], "give a rate and a spread, such as 1e-3,"),
        ("learning.py", ["--store=x", "--shares=10,0"], "--shares=10,0: give numbers above 0"),
        ("learning.py", ["--store=x", "--minutes=nan"], "--minutes=nan: give numbers above 0"),
        ("learning.py", ["--store=nowhere"], "nowhere: not a token store"),
        ("embed.py", ["--rounds=0"], "--rounds=0: at least 1 is needed"),
        ("pair_training.py", ["--steps=0"], "--steps=0: at least 1 is needed"),
        ("small_vectors.py", ["--model=x", "--pairs=nowhere.tsv"], "nowhere.tsv: cannot be read"),
        ("label_efficiency.py", [*LEARNED, "--tasks=sst"], "--tasks=sst: give some of sst2,cola"),
        ("label_efficiency.py", [*LEARNED, "--data=nowhere"], "--data=nowhere: no folder glue/S"),
        ("label_efficiency.py", [*LEARNED, "--tasks=sentences"], "no *_GroundTruth.txt; unpack"),
        ("label_efficiency.py", [*LEARNED, "--rows=1,0"], "--rows=0: give numbers of rows, or all"),
        (
            "label_efficiency.py",
            [*LEARNED, "--rows=250", "--counted=x@0"],
            "--counted has no effect",
        ),
        ("finetune_recipe.py", ["--models=x", "--out=x", "--rows=a"], "--rows=a: give numbers of"),
        (
            "label_efficiency.py",
            [*LEARNED, "--tasks=paragraphs", "--data=nowhere"],
            "--data=nowhere: no questions/squad-form-80-articles.json",
        ),
        ("finetune_speed.py", ["--steps=0"], "--steps=0: at least 1 is needed"),
        ("finetune_speed.py", ["--tasks=mrpc"], "--tasks=mrpc: give some of cola,rte"),
        ("finetune_speed.py", ["--data=nowhere"], "--data=nowhere: glue/CoLA is not there"),
        ("speedrun.py", [*RACED, "--minutes=1"], "--minutes=1: at least 2 are needed"),
        ("speedrun.py", [*RACED, "--seeds=0"], "--seeds=0: at least 1 is needed"),
        ("speedrun.py", [*RACED, "--config.init=run"], "--config.init: the run starts from text"),
        ("speedrun.py", [*RACED, "--config.optimizer.nam=adamw"], "did you mean optimizer.name?"),
        ("speedrun.py", [*RACED, "--config.phases[0].batch_size=abc"], "phases[0].batch_size"),
        ("label_efficiency.py", [*LEARNED, "--tasks="], "--tasks is empty: give some of sst2,cola"),
        ("speedrun.py", [*RACED, "--data=nowhere"], "no folder wiki; name the text by --source"),
        ("speedrun.py", [*RACED, "--data="], "--data is empty and BERT_JAX_REAL_DATA is not set"),
        ("speedrun.py", [*RACED, "--source=python", "--tasks=sst"], "--tasks=sst: give some of s"),
        ("question_retrieval.py", ["--source=nowhere", "--out=x"], "--source=nowhere: no such f"),
        ("gpu_compile.py", ["--rows=9"], "--rows=9: give some of 1,2,3,4,5,6,7"),
        ("vector_runs.py", [*LEARNED, "--tests=sts"], "--tests=sts: give some of stsb,articles"),
        ("vector_runs.py", [*LEARNED, "--stsb_steps=0"], "--stsb_steps=0: at least 1 is needed"),
        ("vector_runs.py", [*LEARNED, "--data=nowhere"], "--data=nowhere: no folder glue/STS-B"),
        ("label_efficiency.py", [*LEARNED, "--rows=9,1,01"], "--rows: 1 is given twice; give each"),
        (
            "label_efficiency.py",
            [*LEARNED, "--tasks=sst2,rte,sst2"],
            "--tasks: sst2 is given twice",
        ),
        ("label_efficiency.py", [*LEARNED, "--others_at=all,all"], "--others_at: all is given twi"),
        ("finetune_recipe.py", ["--models=x,x", "--out=x"], "--models: x is given twice"),
        ("finetune_recipe.py", ["--models=x", "--out=x", "--steps=9,9"], "--steps: 9 is given twi"),
        ("input.py", ["--rounds=0"], "--rounds=0: at least 1 is needed"),
        ("input.py", ["--estimates=nowhere"], "--estimates=nowhere: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    script: str,
    options: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(FOLDER / script)
    monkeypatch.setattr(sys, "argv", [path, *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(path, run_name="__main__")
    assert ended.value.code == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert line in said


def test_a_run_of_several_phases_is_not_compared_by_minutes(
    tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("A sentence.\n\nAnother one.\n" * 50)
    store = store_of_text(f"books:{tmp_path / 'text.txt'}", tokenizer, tmp_path / "store")
    words = [f"--store={store.path}", "--config=modernbert_base"]
    monkeypatch.setattr(sys, "argv", ["learning.py", *words])
    with pytest.raises(SystemExit):
        runpy.run_path(str(FOLDER / "learning.py"), run_name="__main__")
    assert "--config=modernbert_base has 3 phases; give one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--model=other", "has a run of model="),
        ("--text=books:b", "has a run of text=books:a, not books:b; give another"),
        ("--entries=9", "has a run of entries=8, not 9; give another"),
    ],
)
def test_new_entries_of_another_model_or_text_need_another_folder(
    flag: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    request = {"model": str(Path("model").resolve()), "text": "books:a", "entries": 8}
    (tmp_path / "clock.json").write_text(json.dumps({"request": request, "seconds": {}}))
    words = ["--model=model", "--text=books:a", "--entries=8", f"--out={tmp_path}", flag]
    monkeypatch.setattr(sys, "argv", ["new_entries.py", *words])
    with pytest.raises(SystemExit):
        runpy.run_path(str(FOLDER / "new_entries.py"), run_name="__main__")
    assert line in capsys.readouterr().err


def test_a_row_needs_its_page_and_two_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speedrun.py", *RACED])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    for line in ("2 cores are needed", f"{tmp_path}/docs/speedrun.md is not there; start it in a "):
        with pytest.raises(SystemExit):
            runpy.run_path(str(FOLDER / "speedrun.py"), run_name="__main__")
        assert capsys.readouterr().err.startswith(f"error: {line}")
        monkeypatch.setattr(harness, "ROOT", tmp_path)


def test_only_an_option_that_says_so_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.some_of("compile", "", ["gelu"], least=0) == []
    with pytest.raises(SystemExit):
        harness.some_of("tasks", "", ["cola"])
    assert "--tasks is empty: give some of cola" in capsys.readouterr().err
