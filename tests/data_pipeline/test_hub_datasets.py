"""`--source=hf:OWNER/NAME`: datasets of a hub on loopback."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import Files, Hub, commit_of, serve, use_endpoint
from row_files import write_parquet

from bert_jax import cli
from bert_jax.data_pipeline.sources import (
    cutting,
    find,
    hub_dataset,
    parse_source,
    ranges,
    read_range,
)
from bert_jax.data_pipeline.sources.hub_dataset import _by_name, _matching
from bert_jax.data_pipeline.store_build import units
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.storage import hub

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONVERTED = "refs/convert/parquet"

# Its default configuration is no Parquet file, another is.
MIXED = b"""---
configs:
- config_name: default
  data_files: a.jsonl
- config_name: extra
  data_files: b.parquet
---
"""


def rows(folder: Path, words: str, count: int = 40) -> bytes:
    write_parquet(
        folder / "rows.parquet",
        [{"title": w, "text": f"{w} {n}."} for w in words for n in range(count)],
    )
    return (folder / "rows.parquet").read_bytes()


def sentences(folder: Path) -> bytes:
    """Twelve documents of 80 lines each."""
    who, does = ("cat", "dog", "aunt", "bird"), ("sees", "hears", "finds", "paints", "likes")
    lines = [f"The {a} {b} the {c} in the old house." for a in who for b in does for c in who]
    texts = ["\n".join(lines[i:] + lines[:i]) for i in range(12)]
    write_parquet(folder / "rows.parquet", [{"title": "", "text": text} for text in texts])
    return (folder / "rows.parquet").read_bytes()


def card(*configs: str) -> bytes:
    entries = (
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train-*\n"
        f"  - split: test\n    path:\n    - {name}/test-*.parquet\n"
        for name in configs
    )
    return ("---\nlicense: mit\nconfigs:\n" + "".join(entries) + "---\n# Text\n").encode()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Datasets with a card that names their files, with the hub's copy, and with none."""
    pair = {
        f"{name}/{split}-0000{i}-of-00002.parquet": rows(tmp_path, word)
        for name, word in (("old.simple", "a"), ("new.simple", "b"))
        for i, split in enumerate(("train", "train", "test"))
    }
    by_card: Files = pair | {"README.md": card("old.simple", "new.simple"), "wiki.py": b"exit(1)"}
    copied = {"default/train/0000.parquet": rows(tmp_path, "c")}
    parts = {
        "default/partial-train/0000.parquet": rows(tmp_path, "d"),
        "default/test/0000.parquet": rows(tmp_path, "e"),
    }
    datasets = {
        "org/wiki": {"main": by_card},
        "org/copied": {"main": {"load.py": b"exit(1)"}, CONVERTED: copied},
        "org/large": {"main": {"README.md": b"# No settings\n", "a.jsonl": b""}, CONVERTED: parts},
        "org/mixed": {
            "main": {"README.md": MIXED, "a.jsonl": b"{}", "b.parquet": rows(tmp_path, "b")},
            CONVERTED: copied,
        },
        "org/folder": {
            "main": {
                "README.md": b"---\nconfigs:\n- config_name: en\n  data_dir: en\n---\n",
                "en/train.parquet": rows(tmp_path, "f"),
                "en/test.parquet": rows(tmp_path, "g"),
                "fr/train.parquet": rows(tmp_path, "h"),
            }
        },
        "org/odd": {"main": {"README.md": b"---\nconfigs: [\n---\n"}},
        "org/none": {"main": {"a.jsonl": b"{}"}},
        "org/cardless": {"main": {"a.parquet": rows(tmp_path, "a"), "b.jsonl": b"{}"}},
    }
    tokenizer = Tokenizer.from_vocab(
        [*SPECIAL_TOKENS, ".", *LETTERS, *"0123456789", *(f"##{c}" for c in "0123456789")]
    )
    models = {"org/bert": {"main": {"tokenizer.json": tokenizer.json, "config.json": b"{}"}}}
    with serve(Hub(models, datasets)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield server


def texts(name: str, **options: bool) -> list[str]:
    spec = parse_source(name, **options)
    parts = [part for file in find(spec).files for part in ranges(spec, file)]
    return [document.text for part in parts for document in read_range(spec, part)]


@pytest.mark.parametrize("target", [1, cutting.RANGE_BYTES])
@pytest.mark.parametrize(
    ("name", "word", "files"),
    [
        ("hf:org/wiki/new.simple", "b", 2),
        ("hf:org/wiki/old.simple:test", "a", 1),
        ("hf:org/wiki/old.simple:train@main,title=title", "a", 2),
        ("hf:org/copied", "c", 1),
        (f"hf:org/copied@{CONVERTED}", "c", 1),
        ("hf:org/large:test", "e", 1),
        ("hf:org/mixed", "c", 1),
        ("hf:org/folder/en", "f", 1),
        ("hf:org/folder:test", "g", 1),
    ],
)
def test_the_rows_are_documents_wherever_they_are_cut(
    name: str, word: str, files: int, target: int, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.page = 2
    monkeypatch.setattr(cutting, "RANGE_BYTES", target)
    assert texts(name) == [f"{word} {n}." for n in range(40)] * files
    asked = [path for path in server.requests if "/resolve/" in path]
    assert not any(".py" in path or ".jsonl" in path for path in asked)


def test_a_part_of_a_split_is_taken_on_request_alone(server: Hub) -> None:
    for name in ("hf:org/large", "hf:org/large:partial-train"):
        with pytest.raises(UserError, match="only the first 5 GB of train; give --allow_partial"):
            texts(name)
        assert texts(name, allow_partial=True) == [f"d {n}." for n in range(40)]
    with pytest.raises(UserError, match=r"only the first 5 GB of train; download its files$"):
        hub_dataset.download("hf:org/large")  # of a task, which has no such flag


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:org/wiki", "has 2 configurations (new.simple, old.simple); name one: hf:org/wiki/new"),
        ("hf:org/wiki/newsimple", "no configuration newsimple; did you mean new.simple?"),
        ("hf:org/wiki/old.simple:dev", "no split dev; it has test, train"),
        ("hf:org/none", "no Parquet files by its card, nor has the hub a copy of its own"),
        ("hf:org/none", "; download its files and pass --source=jsonl:FILE, csv:FILE or the like"),
        ("hf:org/cardless", "; download its files and pass --source=parquet:FILE"),
        (
            "hf:org/large@main",
            "has a copy of the newest commit alone (refs/convert/parquet); leave",
        ),
        ("hf:org/absent", "no such dataset; check the name"),
        ("hf:org/wiki/new.simple@v9", "no such revision; give a branch, a tag or a commit"),
        ("org/wiki:test", "source kind 'org/wiki' is unknown; did you mean hf:org/wiki, a dataset"),
        ("hf:datasets/org/wiki/new.simple", "; did you mean hf:org/wiki/new.simple?"),
        (
            "https://huggingface.co/datasets/o/str",
            "missing kind; on the Hugging Face hub it is hf:o/str",
        ),
        ("hf://datasets/o/str", "not a dataset's name; did you mean hf:o/str?"),
        ("hf:https://hf.co/datasets/o/str", "not a dataset's name; did you mean hf:o/str?"),
        ("parquet:o/a", "no such file or folder; did you mean hf:o/a, a dataset on"),
        ("parquet:hf:o/a", "no such file or folder; did you mean hf:o/a, a dataset on"),
        ("parquet:o/a.parquet", "no such file or folder; check the path"),
        ("hf:wiki", "not a dataset's name; write hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]"),
        (
            "org/wiki/new.simple",
            ", or hf:org/wiki/new.simple for a dataset on the Hugging Face",
        ),
        (
            "hf:org/copied,text=body",
            "hf:org/copied/default/train/0000.parquet: no column 'body'; its columns are title",
        ),
        ("hf:org/odd", "hf:org/odd/README.md: its settings cannot be read ("),
    ],
)
def test_what_is_not_there_is_one_line(name: str, message: str, server: Hub) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        texts(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.parquet", ["a.parquet"]),
        ("**/*.parquet", ["a.parquet", "d/b.parquet", "d/e/c.parquet"]),
        ("d", ["d/b.parquet", "d/e/c.parquet"]),
        ("*", ["a.parquet"]),
        ("d/*", ["d/b.parquet"]),
        ("d/**", ["d/b.parquet", "d/e/c.parquet"]),
        ("?/b.*", ["d/b.parquet"]),
        ("d/[b].parquet", ["d/b.parquet"]),
        ("d/[!b].parquet", []),
        ("d/e/[a-c].parquet", ["d/e/c.parquet"]),
        ("d/[z-a].parquet", []),
    ],
)
def test_patterns_of_a_card(pattern: str, found: list[str]) -> None:
    assert _matching(["a.parquet", "d/b.parquet", "d/e/c.parquet"], [pattern]) == found


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["data/train-00000-of-00001-ab.parquet", "data/x-00000-of-00001.parquet", "dev.parquet"],
         {"train": [0], "x": [1]}),
        (["train/a.parquet", "x/dev/b.parquet", "x/c.parquet"],
         {"train": [0], "validation": [1], "test": []}),
        (["my-test-1.parquet", "train.parquet", "trained.parquet"],
         {"train": [1], "validation": [], "test": [0]}),
        (["a.parquet", "b/c.parquet"], {"train": [0, 1]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("folder", ["en", "./en/", "."])
def test_a_folder_of_a_card_is_split_by_name(folder: str, files: list[str], splits: dict) -> None:
    """As the Hub does, where the card has a folder without names of files."""
    top = "" if folder == "." else "en/"
    paths = [f"{top}{file}" for file in files]
    others = [] if folder == "." else ["fr/train.parquet", "english/train.parquet"]
    expected = {split: [paths[i] for i in names] for split, names in splits.items()}
    assert _by_name([*others, *paths], folder) == expected


def build(out: Path, *words: str) -> int:
    names = ["--source=hf:org/wiki/new.simple", "--tokenizer=hf:org/bert"]
    return cli.main(["data", "build", *names, f"--out={out}", "--workers=1", *words])


def test_a_store_has_the_commits_and_is_built_again_from_them(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert build(tmp_path / "store") == DONE
    built = json.loads((tmp_path / "store/manifest.json").read_text())
    main = commit_of("main")
    assert built["build"]["hub"] == {"models/org/bert": main, "datasets/org/wiki": main}
    on_card = hub.datasets_in(units.commits_in(built["build"]))
    assert on_card == [("org/wiki", main)]
    files = {"README.md": card("new.simple"), "new.simple/train-0.parquet": rows(tmp_path, "z")}
    server.move("org/wiki", "main", files, kind="datasets")
    hub.forget()
    server.requests.clear()
    assert build(tmp_path / "store") == DONE
    assert "already built from the same text" in capsys.readouterr().err
    assert not any("/main" in path for path in server.requests)
    hub.forget()
    assert build(tmp_path / "other") == DONE
    later = json.loads((tmp_path / "other/manifest.json").read_text())
    assert later["build"]["hub"]["datasets/org/wiki"] != main
    assert later["sources"][0]["splits"]["train"]["documents"] < 40


def test_a_build_goes_on_with_the_commits_that_it_began_with(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "RANGE_BYTES", 100)
    monkeypatch.setattr(units, "_UNIT_BYTES", 100)
    merge = "bert_jax.data_pipeline.store_build.build.merge"

    def full(*_: object, **__: object) -> None:
        raise UserError("no space")

    with monkeypatch.context() as disk:
        disk.setattr(merge, full)
        assert build(tmp_path / "store") == FAILED
    files = {"README.md": card("new.simple"), "new.simple/train-0.parquet": rows(tmp_path, "z")}
    server.move("org/wiki", "main", files, kind="datasets")
    hub.forget()
    assert build(tmp_path / "store") == DONE
    recorded = json.loads((tmp_path / "store/manifest.json").read_text())["build"]["hub"]
    assert recorded["datasets/org/wiki"] == commit_of("main")


def test_a_gated_dataset_is_one_line(
    server: Hub, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    server.gated.add("org/wiki")
    assert build(tmp_path / "store") == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    said = "gated; accept its terms on its page, then run `hf auth login` or set HF_TOKEN"
    assert line == f"error: hf:org/wiki/new.simple: {said}"


def test_the_names_of_revisions_are_of_their_kind(server: Hub) -> None:
    """Branches, tags and the hub's copies, as the client reads them."""
    server.move("org/copied", "v1.0", {}, kind="datasets")
    refs = huggingface_hub.HfApi(endpoint=server.endpoint).list_repo_refs(
        "org/copied", repo_type="dataset"
    )
    found = [[ref.name for ref in kind] for kind in (refs.branches, refs.converts, refs.tags)]
    assert found == [["main"], ["parquet"], ["v1.0"]]
    assert refs.converts[0].ref == CONVERTED


@pytest.mark.skipif(
    not hasattr(huggingface_hub, "get_cached_repo_tree"), reason="a release that keeps no list"
)
def test_without_a_network_the_cache_is_enough_or_is_said_to_lack_files(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert build(tmp_path / "store") == DONE
    hub.forget()
    use_endpoint(monkeypatch, "http://127.0.0.1:1")
    assert build(tmp_path / "again") == DONE
    lost = sorted((tmp_path / "cache").rglob("train-*.parquet"))[0]
    os.unlink(lost)
    capsys.readouterr()
    assert build(tmp_path / "third") == FAILED
    line = capsys.readouterr().err
    assert line.count("\n") == line.count("error: hf:org/wiki/new.simple: ") == 1


@pytest.mark.slow
def test_the_demo_reads_a_dataset_and_stays_with_its_commit(
    server: Hub, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    files = {"README.md": card("all"), "all/train-0.parquet": sentences(tmp_path)}
    server.move("org/wiki", "main", files, kind="datasets")
    words = ["demo", "--data=hf:org/wiki", f"--workdir={tmp_path / 'demo'}", "--steps=2"]
    assert cli.main(words) == DONE
    built = json.loads((tmp_path / "demo/store/manifest.json").read_text())["build"]["hub"]
    assert built.keys() == {"datasets/org/wiki"}
    assert "hf:org/wiki" in (tmp_path / "demo/report.html").read_text()
    changed = files | {"all/train-0.parquet": rows(tmp_path, "z")}
    server.move("org/wiki", "main", changed, kind="datasets")
    hub.forget()  # as a process that starts later
    assert cli.main(words) == DONE
    assert "reusing it" in capsys.readouterr().err
    assert cli.main([*words[:1], "--data=hf:org/copied", *words[2:]]) == FAILED
    other = f"demo --data=hf:org/copied --workdir={tmp_path / 'demo_2'}"
    assert capsys.readouterr().err.strip().endswith(other)
