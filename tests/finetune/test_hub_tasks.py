"""Tasks and pairs from datasets on the hub: a server on loopback."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hub_server import Hub, commit_of, serve, use_endpoint
from row_files import write_parquet

from bert_jax import cli
from bert_jax.config.schema import Config
from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import FAILED
from bert_jax.finetune.tasks.minimal_pairs import read_minimal_pairs
from bert_jax.finetune.tasks.task_kinds import kind_of
from bert_jax.storage import hub
from bert_jax.training import hub_names
from bert_jax.workdir.layout import Workdir

CONVERTED = "refs/convert/parquet"


def rows(folder: Path, *given: dict) -> bytes:
    write_parquet(folder / "rows.parquet", list(given))
    return (folder / "rows.parquet").read_bytes()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    def part(*texts: str) -> bytes:
        return rows(tmp_path, *({"body": text, "kind": i % 2} for i, text in enumerate(texts)))

    mail = {
        "default/train/0000.parquet": part("one", "two"),
        "default/train/0001.parquet": part("three"),
        "default/test/0000.parquet": part("four", "five"),
    }
    pair = {"sentence_good": "A cat sleeps.", "sentence_bad": "A cat sleep.", "UID": "agreement"}
    blimp = {"agreement/train/0000.parquet": rows(tmp_path, pair)}
    datasets = {
        "org/mail": {"main": {"a.csv": b""}, CONVERTED: mail},
        "org/blimp": {"main": {}, CONVERTED: blimp},
    }
    with serve(Hub({}, datasets)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        yield server


def task(**changes: str) -> TaskConfig:
    settings = {"name": "classification", "data": "hf:org/mail", "text": "body", "label": "kind"}
    return TaskConfig(**{**settings, **changes})  # type: ignore[arg-type]


def test_the_rows_of_all_files_of_a_split_are_examples(server: Hub) -> None:
    given = task(held_out="hf:org/mail:test")
    train, held_out = kind_of(given).read(given)
    found = [(one.texts[0], train.labels[one.label], one.row) for one in train.examples]
    assert found == [("one", "0", 1), ("two", "1", 2), ("three", "0", 3)]
    assert [one.texts[0] for one in held_out.examples] == ["four", "five"]
    assert train.path == "hf:org/mail"


def test_minimal_pairs_are_read_from_there(server: Hub) -> None:
    (pair,) = read_minimal_pairs("hf:org/blimp/agreement")
    assert (pair.good.text, pair.groups["UID"]) == ("A cat sleeps.", "agreement")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "kinds"}, "hf:org/mail/default/train/0000.parquet: no column 'kinds'; did you"),
        ({"data": "hf:org/mail:dev"}, "hf:org/mail:dev: no split dev; it has test, train"),
        ({"data": "hf:org/none"}, "hf:org/none: no such dataset"),
        (
            {"name": "sst2", "text": "text", "label": "label"},
            "hf:org/mail: sst2 has files of its own form; download its files, and give their "
            "folder, or train on the rows: --config.task.name=classification",
        ),
        (
            {"name": "tagging", "text": "text", "label": "label"},
            "hf:org/mail: tagging reads no datasets of the hub; download its files",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(
    changes: dict[str, str], message: str, server: Hub
) -> None:
    given = task(**changes)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        kind_of(given).read(given)
    assert "\n" not in str(refused.value)


def test_a_run_records_the_commits_and_takes_them_again(server: Hub, tmp_path: Path) -> None:
    config = Config(task=task(held_out="hf:org/mail:test"))
    hub_names.agree(config, Workdir.open(tmp_path / "run"))
    found = hub_names.commits_of(config)
    branch = f"datasets/org/mail@{CONVERTED}"
    assert found == {"datasets/org/mail": commit_of("main"), branch: commit_of(CONVERTED)}
    moved = {"default/train/0000.parquet": rows(tmp_path, {"body": "new", "kind": 0})}
    server.move("org/mail", CONVERTED, moved, kind="datasets")
    hub.forget()
    hub.use(found)  # as the next start does, of what config.json has
    train, _ = kind_of(config.task).read(config.task)
    assert train.examples[0].texts == ("one",)


@pytest.mark.slow
def test_a_run_on_a_dataset_is_evaluated_on_the_commit_it_has_recorded(
    server: Hub, tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture
) -> None:
    saved, run, out = tmp_path / "tokenizer.json", tmp_path / "run", tmp_path / "out.tsv"
    tokenizer.save(saved)
    command = [
        "finetune", "--config=glue", f"--workdir={run}", f"--config.task.tokenizer={saved}",
        "--config.task.name=classification", "--config.task.data=hf:org/mail",
        "--config.task.held_out=hf:org/mail:test", "--config.task.text=body",
        "--config.task.label=kind", "--config.model.hidden_size=16",
        "--config.model.num_hidden_layers=1", "--config.model.num_attention_heads=2",
        "--config.model.intermediate_size=16", f"--config.model.vocab_size={tokenizer.vocab_size}",
        "--config.phases[0].batch_size=2", "--config.phases[0].seq_length=16",
        "--config.task.epochs=4", "--config.compute.dtype=float32",
    ]  # fmt: skip
    assert cli.main(command) == 0
    # What the branch has now lacks the held-out split.
    moved = {"default/train/0000.parquet": rows(tmp_path, {"body": "new", "kind": 0})}
    server.move("org/mail", CONVERTED, moved, kind="datasets")
    hub.forget()
    values = tmp_path / "values.npz"
    assert cli.main(["evaluate", f"--workdir={run}", f"--per_example={values}"]) == 0
    with np.load(values) as found:
        assert {len(array) for array in found.values() if array.ndim} == {2}
    hub.forget()
    predict = ["predict", f"--model={run}", "--input=hf:org/mail", f"--out={out}", "--text=body"]
    assert cli.main(predict) == 0
    assert len(out.read_text().splitlines()) == 2
    capsys.readouterr()
    assert cli.main([*predict, "--split=test", "--overwrite"]) == FAILED
    assert "the split is part of its name: hf:org/mail:test" in capsys.readouterr().err
    assert cli.main(["convert", "export", f"--workdir={run}", f"--out={tmp_path / 'out'}"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| training | hf:org/mail |" in card
    for revision in ("main", CONVERTED):
        assert f"of the Hugging Face hub, at the commit `{commit_of(revision)}`" in card
    assert card.count("\n- org/mail\n") == 1
