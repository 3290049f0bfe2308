"""Every file that a source leaves out is counted and named."""

import bz2
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.data_pipeline.sources import Found, find, parse_source, read
from bert_jax.data_pipeline.sources.finding import printable
from bert_jax.data_pipeline.store.manifest import manifest_digest
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store_build import units
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])
TEXT = "\n\n".join(f"One {c}.\nTwo {c}." for c in LETTERS)


def found(folder: Path, kind: str = "lines") -> Found:
    return find(parse_source(f"{kind}:{folder}"))


def names(there: Found, folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in there.files]


def made(folder: Path, out: Path, *, strict: bool = False) -> TokenStore:
    source = parse_source(f"lines:{folder}")
    return build_store([source], TOKENIZER, out, workers=1, progress=False, strict=strict)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One file of 26 documents."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text(TEXT)
    return tmp_path / "text"


def test_wildcards_choose_files_and_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "more/a.txt", "more/deep/c.txt", "most/d.txt", "x.csv", "[a].txt"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(TEXT)
    for pattern, chosen in (
        ("?.txt", ["a.txt", "b.txt"]),
        ("[!a].txt", ["b.txt"]),
        ("mo*", ["more/a.txt", "more/deep/c.txt", "most/d.txt"]),
        ("*/a.txt", ["more/a.txt"]),
        ("[a].txt", ["[a].txt"]),  # it exists
    ):
        assert names(found(folder / pattern), folder) == chosen
    monkeypatch.chdir(folder)
    assert [path.name for path in found(Path("b.*")).files] == ["b.txt"]
    with pytest.raises(UserError, match=r"none-\*: matches no file; check the path"):
        found(folder / "none-*")
    with pytest.raises(UserError, match=r"1 file, but no \.txt files .* \(1 of another kind"):
        found(folder / "*.csv")
    for kind in ("lines", "jsonl"):
        with pytest.raises(UserError, match=r"a\.txt/\*: .*a\.txt is a file, not a folder; check"):
            found(folder / "a.txt/*", kind)


def put_other_kinds(folder: Path) -> None:
    for name in ("data.csv", "more/data.csv", "x.jsonl.gz", "README"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("some text")


def put_hidden(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git/description.txt").write_text(TEXT)
    (folder / ".b.txt").write_text(TEXT)


def put_empty(folder: Path) -> None:
    (folder / "b.txt").touch()


def put_dangling(folder: Path) -> None:
    (folder / "b.txt").symlink_to("nowhere")
    (folder / "c.txt").symlink_to("c.txt")


def put_loop(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/up").symlink_to(folder)
    (folder / "self").symlink_to(".")


def put_other_endings(folder: Path) -> None:
    for name in ("b.md", "c.rst"):
        (folder / name).write_text(TEXT)


def put_pipe(folder: Path) -> None:
    os.mkfifo(folder / "b.txt")


LEFT_OUT: list[tuple[Callable[[Path], None], dict[str, list[str]]]] = [
    (
        put_other_kinds,
        {
            "of another kind (.csv)": ["data.csv", "more/data.csv"],
            "of another kind (.jsonl)": ["x.jsonl.gz"],
            "of another kind (no extension)": ["README"],
        },
    ),
    (put_hidden, {"hidden": [".b.txt", ".git"]}),
    (put_empty, {"empty": ["b.txt"]}),
    (put_dangling, {"leading nowhere (link)": ["b.txt", "c.txt"]}),
    (put_loop, {"read already (folder by a link)": ["self", "sub/up"]}),
    (
        put_other_endings,
        {
            "text with another ending (.md)": ["b.md"],
            "text with another ending (.rst)": ["c.rst"],
        },
    ),
    (put_pipe, {"neither file nor folder": ["b.txt"]}),
]


@pytest.mark.parametrize(("put", "wanted"), LEFT_OUT, ids=[put.__name__ for put, _ in LEFT_OUT])
def test_what_is_left_out_is_counted_and_named(
    folder: Path,
    tmp_path: Path,
    put: Callable[[Path], None],
    wanted: dict[str, list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(folder)
    there = found(folder)
    assert names(there, folder) == ["a.txt"]
    assert there.left_out == wanted
    store = made(folder, tmp_path / "store")
    entry = {reason: {"count": len(v), "first": v[:3]} for reason, v in wanted.items()}
    assert store.manifest["sources"][0]["left_out"] == entry
    said = capsys.readouterr().err
    assert all(f"left out: {len(v)} {r}: {', '.join(v)}" in said for r, v in wanted.items())
    with pytest.raises(UserError, match=r"--strict: source 'lines' leaves out 1|2"):
        made(folder, tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()


def test_a_folder_that_cannot_be_read_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "private").mkdir()
    scandir = os.scandir

    def refused(path: Path) -> object:  # root ignores permissions
        if Path(path).name == "private":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert found(folder).left_out == {"unreadable (folder)": ["private"]}
    with pytest.raises(UserError, match=r"leaves out 1 unreadable \(folder\): private"):
        made(folder, tmp_path / "strict", strict=True)


def test_only_the_first_names_are_given(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        (folder / f"{number}.csv").write_text("x")
    made(folder, tmp_path / "store")
    said = capsys.readouterr().err
    assert "left out: 5 of another kind (.csv): 0.csv, 1.csv, 2.csv, …" in said


def test_a_complete_source_is_built_strictly(folder: Path, tmp_path: Path) -> None:
    store = made(folder, tmp_path / "store", strict=True)
    assert store.manifest["sources"][0]["left_out"] == {}
    made(folder, tmp_path / "store", strict=True)  # and opened again


def test_strict_refuses_documents_and_sentences_that_come_to_nothing(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "b.txt").write_text("Text.\n\ue000\n\n\u2060\n")
    message = r"--strict: 1 documents and 1 sentences of source 'lines' have no text"
    with pytest.raises(UserError, match=message):
        made(folder, tmp_path / "store", strict=True)
    assert not (tmp_path / "store").exists()
    made(folder, tmp_path / "store")
    with pytest.raises(UserError, match=message):
        made(folder, tmp_path / "store", strict=True)


def test_the_command_line_has_strict(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_empty(folder)
    TOKENIZER.save(tmp_path / "tokenizer.json")
    words = [f"--source=lines:{folder}", f"--tokenizer={tmp_path}/tokenizer.json", "--workers=1"]
    command = ["data", "build", *words, f"--out={tmp_path}/store"]
    assert cli.main([*command, "--strict"]) == 1
    assert "error: --strict: source 'lines' leaves out 1 empty: b.txt" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert "lines: 1 file read as lines" in capsys.readouterr().err


# Regressions -------------------------------------------------------------------------------------


def test_links_are_followed_and_each_folder_is_read_once(folder: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    (far / "deep").mkdir(parents=True)
    (far / "b.txt").write_text("B.")
    (far / "deep/c.txt").write_text("C.")
    (folder / "link").symlink_to(far)
    (folder / "again").symlink_to(far / "deep")  # a folder that the other link also reaches
    (folder / "d.txt").symlink_to(far / "b.txt")
    there = found(folder)
    assert names(there, folder) == ["a.txt", "again/c.txt", "d.txt", "link/b.txt"]
    assert there.left_out == {"read already (folder by a link)": ["link/deep"]}


def test_a_folder_has_its_own_path_where_a_link_to_it_lies_beside_it(folder: Path) -> None:
    (folder / "z").mkdir()
    (folder / "z/b.txt").write_text("B.")
    (folder / "latest").symlink_to("z")
    assert names(found(folder), folder) == ["a.txt", "z/b.txt"]


@pytest.mark.parametrize("kind", ["lines", "books"])
def test_extensions_in_capitals(tmp_path: Path, kind: str) -> None:
    (tmp_path / "B.TXT").write_text("Text.")
    (tmp_path / "C.Txt.GZ").write_bytes(gzip.compress(b"More."))
    (tmp_path / "D.txt.BZ2").write_bytes(bz2.compress(b"Most."))
    spec = parse_source(f"{kind}:{tmp_path}")
    texts = [document.text for file in find(spec).files for document in read(spec, file)]
    assert texts == ["Text.", "More.", "Most."]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
def test_line_ends_of_every_system(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.txt").write_bytes(end.join(["One.", "Two.", ""]).encode())
    (tmp_path / "b.md").write_bytes(end.join(["## I", "A", "b.", "", "## II", "C.", ""]).encode())
    spec = parse_source(f"lines:{tmp_path}/a.txt")
    assert [d.text for d in read(spec, tmp_path / "a.txt")] == ["One.\nTwo."]
    chapters = [d.text for d in read(parse_source(f"books:{tmp_path}"), tmp_path / "b.md")]
    assert chapters == ["A\nb.\n", "C."]


def test_a_readme_is_no_book(tmp_path: Path) -> None:
    for name in ("README.md", "license.txt", "COPYING.txt.gz", "Readme for murder.txt", "sub/a.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("A text.")
    there = found(tmp_path, "books")
    assert names(there, tmp_path) == ["Readme for murder.txt", "sub/a.md"]
    assert there.describe() == [
        "3 about the books, by the name: COPYING.txt.gz, README.md, license.txt",
    ]
    assert found(tmp_path / "README.md", "books").files == [tmp_path / "README.md"]


def test_the_standard_library_is_complete_by_itself() -> None:
    """Tests and non-Python files do not belong to such a source."""
    assert found(parse_source("python").path, "python").left_out == {}


# Names and manifests -----------------------------------------------------------------------------


def test_hostile_names_break_neither_line_nor_manifest(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [b"line\nbreak.csv", b"\x1b[31mred.csv", b"\xff\xfe.csv", "ünï.csv".encode()]
    for name in odd:
        (folder / os.fsdecode(name)).write_text("x")
    (folder / os.fsdecode(b"\xff[bold].txt")).write_text("One.\n" * 300)  # cut: named in a warning
    store = made(folder, tmp_path / "store")
    open_store(tmp_path / "store")
    assert store.manifest["sources"][0]["left_out"]["of another kind (.csv)"]["count"] == 4
    said = capsys.readouterr().err
    assert "\x1b[31m" not in said
    assert r"\udcff[bold].txt" in said
    assert printable("line\nbreak\x1b\u202e\x00 ü") == r"line\nbreak\x1b\u202e\x00 ü"


def test_stores_without_this_field_open_and_wrong_ones_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    file = made(folder, tmp_path / "store").path / "manifest.json"
    manifest = json.loads(file.read_text())

    def write(left_out: object) -> None:
        manifest["sources"][0]["left_out"] = left_out
        if left_out is None:
            del manifest["sources"][0]["left_out"]
        manifest["digest"] = manifest_digest(manifest)
        file.write_text(json.dumps(manifest))

    write(None)  # as in older stores
    open_store(tmp_path / "store")
    for wrong in (3, [], {"x": 1}, {"x": {"count": -1, "first": []}}, {"x": {"first": [1]}}):
        write(wrong)
        with pytest.raises(UserError, match="left_out is"):
            open_store(tmp_path / "store")


def test_what_is_left_out_does_not_make_another_store(folder: Path, tmp_path: Path) -> None:
    made(folder, tmp_path / "store")
    put_empty(folder)
    made(folder, tmp_path / "store")  # the same text: opened, not rejected


def test_workers_make_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "_UNIT_BYTES", 1)
    put_other_kinds(folder)
    (folder / "b.txt").write_text(TEXT.upper())
    made(folder, tmp_path / "one")
    source = parse_source(f"lines:{folder}")
    build_store([source], TOKENIZER, tmp_path / "four", workers=4, progress=False)
    for file in sorted((tmp_path / "one").rglob("*.*")):
        other = tmp_path / "four" / file.relative_to(tmp_path / "one")
        assert file.read_bytes() == other.read_bytes(), file


def test_what_may_not_be_looked_at_is_unreadable_and_leads_somewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a link into a private folder; as root a test cannot have one."""
    (folder / "link").symlink_to("a.txt")

    class Refused:
        name, path = "link", str(folder / "link")

        def is_dir(self) -> bool:
            raise PermissionError(13, "Permission denied")

        def is_symlink(self) -> bool:
            return True

    scan = os.scandir
    entries = lambda path: [e for e in scan(path) if e.name != "link"] + [Refused()]  # noqa: E731
    monkeypatch.setattr("bert_jax.data_pipeline.sources.finding.os.scandir", entries)
    assert found(folder).left_out == {"unreadable": ["link"]}
