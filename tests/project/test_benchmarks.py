"""benchmarks/: tiny runs of each script. No figure is checked."""

import csv
import gzip
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest
from benchmark_runs import FOLDER, run
from corpus import small_store

sys.path.append(str(FOLDER))

import convert
import harness
import input as feed
import kernel_times
import paragraphs


def test_every_benchmark_records_its_figures() -> None:
    """So that --json, which all have, prints them."""
    texts = {path.name: path.read_text() for path in FOLDER.glob("*.py")}
    asked = {name for name, text in texts.items() if "harness.parser(" in text}
    assert len(asked) > 20
    records = re.compile(r"harness\.record\(|task_runs\.run_all\(")  # run_all records each run
    assert [name for name in asked if not records.search(texts[name])] == []


@pytest.mark.processes
def test_a_store_that_is_not_there_is_one_line() -> None:
    done = run("input.py", "--store=nowhere")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: nowhere")


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"BERT_JAX_LIBTPU": "/nowhere.so"}, "BERT_JAX_LIBTPU=/nowhere.so: no such file"),
        ({"BERT_JAX_LIBTPU": __file__, "BERT_JAX_PEER": "/nowhere"}, "`make .venv/peer`"),
    ],
)
@pytest.mark.processes
def test_without_compiler_or_peer_nothing_is_compared(environment: dict, line: str) -> None:
    done = run("tpu_compile.py", **environment)
    assert done.returncode == 1
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.processes
def test_the_table_of_slices_explains_itself_and_needs_a_compiler() -> None:
    done = run("slices.py", "--help")
    assert done.returncode == 0
    for said in ("--models", "--slices", "v5p-32", "--config.KEY=VALUE"):
        assert said in done.stdout
    done = run("slices.py", BERT_JAX_LIBTPU="/nowhere.so")
    assert done.returncode == 1
    assert done.stderr == (
        "error: BERT_JAX_LIBTPU=/nowhere.so: no such file; give the path of libtpu.so itself\n"
    )
    done = run("slices.py", "--steps=1")
    assert done.returncode == 2
    assert "unrecognized arguments: --steps=1" in done.stderr


@pytest.mark.processes
def test_without_a_gpu_nothing_is_called_one() -> None:
    done = run("train_gpu.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: JAX finds no GPU here, its device is a cpu; ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.nightly
@pytest.mark.processes
def test_a_dry_run_trains_and_names_kernels() -> None:
    done = run("train_gpu.py", "--dry_run", "--rounds=2", "--steps=1")
    assert done.returncode == 0, done.stderr
    assert "BERT-tiny, 8 rows of 64 tokens, dropout everywhere" in done.stdout
    (ours,) = re.findall(r"^bert_jax .*", done.stdout, re.MULTILINE)
    real, positions, _, share, times, *losses = ours.split()[1:]
    assert 0 < int(real.replace(",", "")) <= int(positions.replace(",", ""))
    assert float(share.rstrip("%")) > 0
    assert times == "1.00"
    assert all(10 < float(loss) < 12 for loss in losses)  # ln 30522, and ln 2 for pairs
    assert re.search(r"kernels of bert_jax, [\d.]+ ms per step:\n +[\d.]+% ", done.stdout)
    if importlib.util.find_spec("torch") is None:
        assert "No module named 'torch'; the [torch] extra installs it" in done.stderr
        assert "transformers, PyTorch: not measured, a contender ended" in done.stdout


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.processes
def test_both_sides_train_on_the_same_and_packed_rows_beside_padded(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", documents=300)
    done = run("train_gpu.py", "--dry_run", f"--store={store.path}", "--rounds=1", "--steps=1")
    assert done.returncode == 0, done.stderr
    ours, theirs = (
        [float(loss) for loss in re.search(rf"^{name} .*   (.*)$", done.stdout, re.M)[1].split()]
        for name in ("bert_jax", "transformers, PyTorch")
    )
    # The same parameters and rows, each with its own dropout.
    assert ours == pytest.approx(theirs, abs=0.2)
    assert re.search(r"^bert_jax, packed ", done.stdout, re.MULTILINE)


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.skipif("BERT_JAX_REAL_DATA" not in os.environ, reason="needs BERT_JAX_REAL_DATA")
def test_both_sides_learn_a_task_from_the_same_weights() -> None:
    done = run("finetune_speed.py", "--tasks=cola", "--rounds=1", "--steps=1")
    assert done.returncode == 0, done.stderr
    losses = [
        float(re.search(rf"^  {name} .* loss (.*)$", done.stdout, re.MULTILINE)[1])
        for name in ("bert_jax", "transformers")
    ]
    # Each has batches in its own order, and its own dropout.
    assert losses[0] == pytest.approx(losses[1], abs=0.3)


@pytest.mark.torch
@pytest.mark.parametrize("layout", ["bert", "modernbert"])
def test_the_peer_computes_the_same_loss_with_either_head(layout: str, tmp_path: Path) -> None:
    """And that of a packed row is the mean over its examples alone."""
    import dataclasses

    import numpy as np
    import peer_torch
    import torch
    from layout_models import layout_config
    from small import run_config

    from bert_jax.training.batches import phase_batches

    config = run_config()
    store = small_store(tmp_path / "store")
    model = dataclasses.replace(config.model, vocab_size=store.vocab_size)
    if layout == "modernbert":
        model = layout_config(layout, vocab_size=store.vocab_size)
        data = dataclasses.replace(config.data, pairing="single")
        phase = dataclasses.replace(config.phases[0], examples_per_row=4, row_length=96)
        config = dataclasses.replace(config, data=data, phases=(phase,))
    config = peer_torch.same_recipe(dataclasses.replace(config, model=model))
    batch = phase_batches(config, store, store.train, config.phases[0]).batch(0)
    peer_torch.write_start(config, store.special.pad, tmp_path)
    model = peer_torch.load_model(tmp_path)
    tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
    inputs = peer_torch.inputs_of(model, tensors)
    whole = model(**inputs).loss.item()
    np.testing.assert_allclose(peer_torch.masked_loss(model, tensors).item(), whole, rtol=1e-5)
    if layout == "modernbert":
        losses = []
        for row, ids in enumerate(batch["example_ids"]):
            for number in np.unique(ids[ids > 0]):
                at = np.flatnonzero(ids == number)
                labels = inputs["labels"][row, at][None]
                alone = model(input_ids=tensors["input_ids"][row, at][None], labels=labels)
                losses += [alone.loss.item()] * int((labels != peer_torch.NO_LABEL).sum())
        assert batch["example_ids"].max() > 1
        np.testing.assert_allclose(np.mean(losses), whole, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.processes
def test_input_says_what_every_host_needs(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", documents=400)
    estimates = tmp_path / "compiled.json"
    estimates.write_text(
        json.dumps(
            {
                "config": "base",
                "topology": {"name": "v5e-16", "hosts": 4},
                "phases": [
                    {
                        "config": {"batch_size": 1024, "seq_length": 128},
                        "estimated_tokens_per_second": 4e6,
                    }
                ],
            }
        )
    )
    done = run(
        "input.py", f"--store={store.path}", f"--estimates={estimates}", "--rounds=1", "--batches=2"
    )
    assert done.returncode == 0, done.stderr
    fill = float(re.search(r"^rows of 128 .* ([\d.]+)%$", done.stdout, re.MULTILINE)[1]) / 100
    needs = {
        title: float(tokens)
        for title, tokens in re.findall(r"^(v.*?\d) +([\d.]+) ", done.stdout, re.MULTILINE)
    }
    assert len(needs) == (len(feed.HOSTS) - 1) * 4  # and TPU7x
    four, eight = (needs[f"v5e, {n} chips: base, rows of 128"] for n in (4, 8))
    # 197 TFLOP/s a chip; 6 operations for each of 85 million parameters, and a little more.
    assert 0.8 < 4 * 197e6 / (6 * 85e6) * fill / four < 1.25
    assert eight == pytest.approx(2 * four, abs=0.02)
    (said,) = re.findall(r"^base on v5e-16, 1,024 rows of 128 +([\d.]+)", done.stdout, re.MULTILINE)
    assert float(said) == pytest.approx(fill, abs=0.01)  # a million positions a host


@pytest.mark.processes
def test_an_estimate_that_is_something_else_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"phases": []}')
    done = run("input.py", f"--estimates={file}")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: --estimates={file}: not the output of `bert-jax compile --json` "
        "(KeyError('topology'))\n"
    )


def write_trace(folder: Path, threads: dict[int, str], calls: list[tuple]) -> None:
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
        for tid, name in threads.items()
    ]
    events = [
        {"ph": "X", "name": name, "pid": 1, "tid": tid, "dur": duration, "args": args}
        for tid, name, duration, args in calls
    ]
    folder.mkdir(parents=True)
    content = json.dumps({"traceEvents": [*names, *events, {}]}).encode()
    (folder / "perfetto_trace.json.gz").write_bytes(gzip.compress(content))


def test_kernels_are_counted_once_the_longest_first(tmp_path: Path) -> None:
    write_trace(
        tmp_path / "a",
        {1: "Stream #14(Compute)", 2: "XLA Ops", 3: "python"},
        [
            (1, "short", 1.0, {"hlo_op": "fusion.1"}),
            (1, "short", 2.0, {"hlo_op": "fusion.2"}),
            (1, "long", 5.0, {"hlo_op": "dot.1"}),
            (1, "copied", 9.0, {}),  # of no operation
            (2, "dot.1", 5.0, {"hlo_op": "dot.1"}),  # derived: the same again
            (3, "waiting", 50.0, {}),
        ],
    )
    assert kernel_times.kernels(tmp_path) == [
        kernel_times.Kernel("long", 5.0, 1),
        kernel_times.Kernel("short", 3.0, 2),
    ]
    with pytest.raises(ValueError, match="0 traces, expected one"):
        kernel_times.kernels(tmp_path / "a" / "nothing")


@pytest.mark.nightly
@pytest.mark.processes
def test_runs_with_both_gradients_of_attention(tmp_path: Path) -> None:
    small = ["--steps=2", "--seeds=1", "--layers=1", "--width=32", "--rows=4", "--evaluations=1"]
    done = run("attention_gradient.py", f"--store={small_store(tmp_path).path}", *small)
    assert done.returncode == 0, done.stderr
    for form in ("bfloat16, before", "bfloat16", "float32"):
        assert f"seed 0, {form} " in done.stdout


@pytest.mark.slow
@pytest.mark.processes
def test_gradients_by_hand_save_less_than_autodiff() -> None:
    done = run("ops.py", "--compile=", "--json")
    assert done.returncode == 0, done.stderr
    *rows, last = (line.split(maxsplit=2) for line in done.stdout.splitlines()[1:])
    saved = {name: (float(by_hand), float(automatic)) for name, by_hand, automatic in rows}
    said = json.loads(" ".join(last))
    assert (said["benchmark"], said["options"]) == ("ops.py", ["--compile=", "--json"])
    recorded = {one["saved_mib"]: (one["by_hand"], one["autodiff"]) for one in said["figures"]}
    assert recorded == {name: pytest.approx(both, abs=0.05) for name, both in saved.items()}
    for name in ("attention", "layer_norm", "gelu", "dropout", "cross_entropy"):
        assert saved[name][0] < 0.5 * saved[name][1], name


@pytest.mark.processes
def test_a_contender_that_ends_is_an_error_and_no_hang() -> None:
    contender = harness.Contender(["-c", "import sys; sys.exit(7)"], {})
    with pytest.raises(ChildProcessError, match="a contender ended with exit code 7"):
        contender.steps(1)
    contender.close()


needs_libtpu = pytest.mark.skipif(
    not os.environ.get("BERT_JAX_LIBTPU") and importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed and BERT_JAX_LIBTPU does not name a copy",
)


@pytest.mark.nightly
@needs_libtpu
@pytest.mark.processes
def test_a_row_of_the_table_of_slices() -> None:
    done = run("slices.py", "--models=tiny", "--slices=v5e-4,v3-8", "--config.phases[0].steps=5")
    assert done.returncode == 0, done.stderr
    header, line, *rows = done.stdout.split("\n\n")[0].splitlines()
    assert header.startswith("| config | slice | chips | GiB |")
    assert set(line) == set("|-")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[:3] for row in cells] == [["tiny", "v5e-4", "4"], ["tiny", "v3-8", "4"]]
    for row in cells:
        assert float(row[3]) < float(row[4])
        assert float(row[5]) > 0
        assert row[7].endswith("%")
    assert "nothing ran" in done.stdout


@pytest.mark.nightly
@needs_libtpu
@pytest.mark.processes
def test_one_layer_is_compiled_for_a_slice() -> None:
    done = run(
        "tpu_compile.py", "--rows=1", "--forms=1", "--generators=", "--layers=1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.match(r"libtpu [\d.]+, jax ", done.stdout)
    (program,) = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert program["row"]["model"] == "base"
    assert program["cycles"] > 5e6
    assert program["collective_cycles"] > 0
    assert program["temporaries"] > 2**25
    assert program["cpu_seconds"] > 0


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_a_base_is_imported_and_exported_in_a_gibibyte_and_a_half(tmp_path: Path) -> None:
    vocabulary, specials = tmp_path / "vocab.txt", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    entries = [*specials, *(f"w{n}" for n in range(30_522 - len(specials)))]
    vocabulary.write_text("\n".join(entries) + "\n")
    convert.make_model(tmp_path / "model", vocabulary)
    convert.make_run(tmp_path)
    for words in convert.COMMANDS[:2]:
        _, peak = convert.measure(["convert", *words], tmp_path)
        assert 440 < peak < 1536, words


@pytest.mark.slow
@pytest.mark.processes
def test_a_question_has_its_paragraph_among_others_of_the_article(tmp_path: Path) -> None:
    def article(name: str) -> dict:
        texts = [f"{name} has part {name}{part} in it" for part in "uvwxyz"]
        return {
            "paragraphs": [
                {"context": text, "qas": [{"question": f"Where is {text.split()[3]}?"}]}
                for text in texts
            ]
        }

    source = tmp_path / "questions.json"
    source.write_text(json.dumps({"data": [article(name) for name in "abcdefghijkl"]}))
    paths = paragraphs.write(source, tmp_path / "out", 30)
    tables = [[*csv.DictReader(path.read_text().splitlines())] for path in paths]
    assert [len(table) for table in tables] == [30, 12]  # articles a and k are held out
    for table in tables:
        choices = [[row[f"ending{i}"] for i in range(4)] for row in table]
        assert all(len({*one}) == 4 and len({text[0] for text in one}) == 1 for one in choices)
        found = paragraphs.bm25([row["sent1"] for row in table], choices)
        assert found.tolist() == [int(row["label"]) for row in table]


@pytest.mark.slow
@pytest.mark.processes
def test_the_intervals_of_an_ablation_are_timed() -> None:
    done = run("ablation_statistics.py", "--examples=40", "--documents=8", "--resamples=100")
    assert done.returncode == 0, done.stderr
    said = "100 resamples of 10 seeds, 40 examples in 8 documents: "
    assert re.match(said + r"[\d.]+ s of processors, [\d.]+ s; memory before", done.stdout)
    done = run("ablation_statistics.py", "--examples=4", "--documents=8")
    assert "--documents=8: give at least 1, at most --examples" in done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_simulated_reports_are_counted_once(tmp_path: Path) -> None:
    """Finished cells are kept in the file; those made with other settings are not taken."""
    kept = tmp_path / "kept.jsonl"
    options = ["--resamples=50", "--processes=1", "--only=seeds=3, seed_sd=0.1", f"--out={kept}"]
    first = run("ablation_coverage.py", "--reports=4", *options)
    assert first.returncode == 0, first.stderr
    assert re.search(r"\| equal \| 10 \| 10 \| 3 \| 0\.1 \|( [\d.]+% \|){5}", first.stdout)
    cells = len(kept.read_text().splitlines())
    assert run("ablation_coverage.py", "--reports=4", *options).stdout == first.stdout
    assert len(kept.read_text().splitlines()) == cells
    assert run("ablation_coverage.py", "--reports=5", *options).returncode == 0
    assert len(kept.read_text().splitlines()) == 2 * cells
    assert "--only=11: in no cell" in run("ablation_coverage.py", "--only=11").stderr
    added = run("ablation_coverage.py", "--reports=4", "--resamples=50", "--stopping").stdout
    assert re.fullmatch(r"3 seeds: .* none\n10 seeds: .* none\nuntil: .* none\n", added)


@pytest.mark.slow
@pytest.mark.processes
def test_made_up_shards_are_merged_without_their_copies() -> None:
    done = run("merge.py", "--dedup=near", "--tokens=4e6", "--documents=1000")
    assert done.returncode == 0, done.stderr
    assert "1,000 documents in 1 shards; kept: {'train': 891, 'held_out': 9}" in done.stdout
