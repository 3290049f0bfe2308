"""`data export-examples`: the trainer's rows as Parquet and TFRecord files."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from corpus import small_config, small_store
from tensorboardX.record_writer import masked_crc32c
from tensorflow_datasets.proto import tf_example_pb2
from tensorflow_itself import ask, needs_tensorflow

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.export import example_files, parquet
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.training.batches import held_out_config, phase_batches
from bert_jax.training.export_examples import export_examples

Columns = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("export") / "store")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty rows of 32 tokens a file: neither a batch of 8 nor an epoch is a number of files."""
    monkeypatch.setattr(example_files, "_FILE_TOKENS", 20 * 32)


def export(store: TokenStore, config: Config, out: Path, **changed: Any) -> list[Path]:
    """Returns the files, in order."""
    options = {"phase": 0, "split_name": "train", "epochs": 1, "format_name": "parquet"}
    export_examples(str(store.path), config, str(out), **(options | changed))
    return sorted(file for file in out.iterdir() if file.name != example_files.ABOUT)


def read_parquet(files: list[Path]) -> Columns:
    table = pq.read_table(files)
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def records(file: Path) -> Iterator[bytes]:
    """The records of a TFRecord file, whose checksums must be right."""
    data = file.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        record, data = data[12 : 12 + size], data[12 + size :]
        assert int.from_bytes(data[:4], "little") == masked_crc32c(record)
        yield record
        data = data[4:]


def read_tfrecord(files: list[Path]) -> Columns:
    rows = [tf_example_pb2.Example.FromString(record) for file in files for record in records(file)]
    values = [
        {n: getattr(f, f.WhichOneof("kind")).value for n, f in row.features.feature.items()}
        for row in rows
    ]
    return {name: np.array([row[name] for row in values]) for name in values[0]}


def trained_on(store: TokenStore, config: Config, epochs: int) -> Batch:
    """The rows of the first batches of a run."""
    (phase,) = config.phases
    batches = phase_batches(config, store, store.train, phase)
    rows = batches.rows_per_epoch * epochs
    made = [batches.batch(step) for step in range(-(-rows // phase.batch_size))]
    return {name: np.concatenate([batch[name] for batch in made])[:rows] for name in made[0]}


def test_parquet_rows_are_those_of_the_trainer(store: TokenStore, tmp_path: Path) -> None:
    config = small_config(store, seed=3)
    files = export(store, config, tmp_path / "out", epochs=2)
    found, wanted = read_parquet(files), trained_on(store, config, epochs=2)
    assert len(files) > 2
    assert files[1].name == f"train-00001-of-{len(files):05}.parquet"
    assert list(found) == [
        *("input_ids", "token_type_ids", "attention_mask", "labels", "next_sentence_label"),
    ]
    np.testing.assert_array_equal(found["input_ids"], wanted["input_ids"])
    np.testing.assert_array_equal(found["token_type_ids"], wanted["token_type_ids"])
    np.testing.assert_array_equal(found["attention_mask"], wanted["example_ids"] > 0)
    np.testing.assert_array_equal(found["next_sentence_label"], wanted["pair_labels"][:, 0])
    labels = np.full(found["labels"].shape, -100)
    for row, slot in zip(*np.nonzero(wanted["masked_weights"]), strict=True):
        labels[row, wanted["masked_positions"][row, slot]] = wanted["masked_labels"][row, slot]
    np.testing.assert_array_equal(found["labels"], labels)
    half = len(labels) // 2
    assert not np.array_equal(labels[:half], labels[half:])  # other masks in each epoch


def test_tfrecord_rows_are_those_of_the_trainer(store: TokenStore, tmp_path: Path) -> None:
    config = small_config(store)
    found = read_tfrecord(export(store, config, tmp_path / "out", format_name="tfrecord"))
    wanted = trained_on(store, config, epochs=1)
    renamed = {
        "input_ids": wanted["input_ids"],
        "input_mask": wanted["example_ids"] > 0,
        "segment_ids": wanted["token_type_ids"],
        "masked_lm_positions": wanted["masked_positions"],
        "masked_lm_ids": wanted["masked_labels"],
        "masked_lm_weights": wanted["masked_weights"],
        "next_sentence_labels": wanted["pair_labels"],
    }
    assert found.keys() == renamed.keys()
    for name, values in renamed.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.filterwarnings("default")  # datasets' own deprecations are not ours
def test_datasets_reads_the_parquet_as_it_is(store: TokenStore, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = export(store, small_config(store), tmp_path / "out")
    read = datasets.load_dataset(
        "parquet", data_files=f"{tmp_path}/out/*.parquet", split="train",
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    ours = read_parquet(files)
    assert read.column_names == list(ours)
    for name, values in ours.items():
        np.testing.assert_array_equal(np.array(read[name]), values, err_msg=name)


@pytest.mark.slow
@pytest.mark.processes
@needs_tensorflow
def test_the_parser_of_google_research_bert_reads_the_records(
    store: TokenStore, tmp_path: Path
) -> None:
    config = small_config(store)
    files = export(store, config, tmp_path / "out", format_name="tfrecord")
    shape = {"seq_length": 32, "predictions": 5}
    arguments = {"files": [str(file) for file in files], **shape}
    (found,) = ask(tmp_path / "asked", "examples", [({}, arguments)])
    ours = read_tfrecord(files)
    assert found.keys() == ours.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_packed_phase_has_the_same_examples_and_masks(store: TokenStore, tmp_path: Path) -> None:
    config = small_config(store)
    (phase,) = config.phases
    packed = dataclasses.replace(phase, examples_per_row=4, row_length=64)
    config = dataclasses.replace(config, phases=(packed,))
    found = read_parquet(export(store, config, tmp_path / "out"))
    batch, rows = trained_on(store, config, epochs=1), []
    for ids, numbers in zip(batch["input_ids"], batch["example_ids"], strict=True):
        rows += [ids[numbers == number].tolist() for number in range(1, numbers.max() + 1)]
    kept = found["attention_mask"].astype(bool)
    mine = [ids[keep].tolist() for ids, keep in zip(found["input_ids"], kept, strict=True)]
    assert sorted(mine) == sorted(rows)


def test_held_out_rows_are_those_that_evaluate_measures(store: TokenStore, tmp_path: Path) -> None:
    config = small_config(store, seed=7)
    found = read_parquet(export(store, config, tmp_path / "out", split_name="held_out"))
    fixed = held_out_config(config, config.phases[0])
    batches = phase_batches(fixed, store, store.held_out, fixed.phases[0])
    wanted = [batches.evaluation_batch(i)["input_ids"] for i in range(batches.batches_once)]
    np.testing.assert_array_equal(
        found["input_ids"], np.concatenate(wanted)[: batches.rows_per_epoch]
    )


@pytest.mark.parametrize(
    ("pairing", "last"), [("sop", "sentence_order_label"), ("full_sentences", "labels")]
)
def test_other_pairings_have_the_label_that_transformers_knows(
    pairing: str, last: str, store: TokenStore, tmp_path: Path
) -> None:
    config = small_config(store)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, pairing=pairing))
    assert list(read_parquet(export(store, config, tmp_path / "out")))[-1] == last


def test_an_interrupted_export_resumes_with_the_same_bytes(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, made, encode = small_config(store), [], parquet.encode
    whole = [file.read_bytes() for file in export(store, config, tmp_path / "whole")]

    def killed_at(number: int) -> None:
        def once(*arguments: Any) -> bytes:
            if len(made) == number:
                raise KeyboardInterrupt
            made.append(number)
            return encode(*arguments)

        monkeypatch.setattr(parquet, "encode", once)

    killed_at(2)
    with pytest.raises(KeyboardInterrupt):
        export(store, config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"another config\.seed; remove it, or finish it"):
        export(store, dataclasses.replace(config, seed=1), tmp_path / "out")
    killed_at(-1)
    files = export(store, config, tmp_path / "out")
    assert [file.read_bytes() for file in files] == whole
    assert len(made) == len(files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]
    export(store, config, tmp_path / "out")  # has them already
    assert len(made) == len(files)


def test_masks_whose_rate_changes_depend_on_the_batch_size(
    store: TokenStore, tmp_path: Path
) -> None:
    config = small_config(store).replace("phases[0].mask_rate", 0.4)
    config = config.replace("phases[0].mask_rate_end", 0.1)
    export(store, config, tmp_path / "out")
    other = config.replace("phases[0].batch_size", 2 * config.phases[0].batch_size)
    with pytest.raises(UserError, match=r"another config\.phase\.batch_size"):
        export(store, other, tmp_path / "out")


def test_what_cannot_be_exported_is_one_line(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = small_config(store), tmp_path / "out"
    blocks = dataclasses.replace(
        config, data=dataclasses.replace(config.data, pairing="full_sentences")
    )
    nothing = small_store(tmp_path / "nothing", held_out=0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    export(store, config, tmp_path / "done")
    first = export(store, config, tmp_path / "lost")[0]
    first.unlink()
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "examples.json").write_text("[1]")
    for pattern, arguments, changed in (
        (r"--phase=1: the config has phases 0 to 0", (store, config, out), {"phase": 1}),
        ("--epochs=2: held-out rows have one masking", (store, config, out),
         {"epochs": 2, "split_name": "held_out"}),
        ('"held_out" split is empty', (nothing, config, out), {"split_name": "held_out"}),
        ("needs sentence pairs, but .*full_sentences", (store, blocks, out),
         {"format_name": "tfrecord"}),
        ('one label for each position, but config.data.masking="with_replacement" predicts some',
         (store, config.replace("data.masking", "with_replacement"), out), {}),
        ("mine: exists and is not a folder of examples", (store, config, tmp_path / "mine"), {}),
        ("done: .* exported with another epochs, format", (store, config, tmp_path / "done"),
         {"epochs": 2, "format_name": "tfrecord"}),
        (f"{first.name} is missing; remove the folder", (store, config, tmp_path / "lost"), {}),
        ("list: exists and has no exported examples", (store, config, tmp_path / "list"), {}),
        (r"\.: this folder would be replaced", (store, config, Path()), {}),
    ):  # fmt: skip
        with pytest.raises(UserError, match=pattern):
            export(*arguments, **changed)
    with pytest.raises(UserError, match="gs://b/out: write to a local path"):
        export_examples(
            str(store.path), config, "gs://b/out",
            phase=0, split_name="train", epochs=1, format_name="parquet",
        )  # fmt: skip
    for name, library, extra in (
        ("parquet", "pyarrow", "arrow"),
        ("tfrecord", "tensorflow_datasets", "tfds"),
    ):
        monkeypatch.delitem(sys.modules, f"bert_jax.data_pipeline.export.{name}", raising=False)
        for module in [m for m in sys.modules if m.partition(".")[0] == library]:
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match=rf"{library}.*pip install 'bert-jax\[{extra}\]'"):
            export(store, config, out, format_name=name)
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_imports_no_jax(store: TokenStore, tmp_path: Path) -> None:
    words = [
        *("data", "export-examples", f"--store={store.path}", f"--out={tmp_path / 'out'}"),
        *("--config=tiny", "--config.phases[0].seq_length=32", "--config.phases[0].batch_size=8"),
    ]
    program = (
        f"import sys; from bert_jax import cli; code = cli.main({words}); "
        "sys.exit(code or bool({'jax', 'tensorflow'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "out" / example_files.ABOUT).read_text())
    rows = len(read_parquet(sorted((tmp_path / "out").glob("*.parquet")))["labels"])
    assert f"{rows:,} rows of 32 tokens of the train split in 1 file" in done.stdout
    assert about["text"] == store.train.digest
