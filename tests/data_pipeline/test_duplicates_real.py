"""What `--dedup` leaves out of real text: the list in docs/data_reference.md, nothing else."""

import sys
import tarfile
from pathlib import Path

import pytest

from bert_jax.data_pipeline.sources import parse_source

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import duplicates  # noqa: E402

# What is left out and the document it repeats: source, name, words; their similarity.
NOVEL = "They had been gone nearly a couple of Hours, before either M"
TWICE = ("books", NOVEL, "books", NOVEL, 1805, 1.0)


@pytest.mark.parametrize(
    ("dedup", "expected"),
    [
        pytest.param("exact", [TWICE], marks=pytest.mark.slow),
        pytest.param("near", [TWICE], marks=pytest.mark.nightly),
    ],
)
def test_what_is_left_out_of_the_data_folder(
    dedup: str, expected: list[tuple], real_data: Path, tmp_path: Path
) -> None:
    for kind, folder in (("wikiextractor", "wikipedia"), ("books", "books")):
        (archive,) = (real_data / folder).glob("*.tar.xz")
        with tarfile.open(archive, "r:xz") as members:
            members.extractall(tmp_path / kind, filter="data")
    texts = (f"wikiextractor:{tmp_path}/wikiextractor", f"books:{tmp_path}/books")
    dumps = f"dump:{real_data}/wikipedia"
    sources = [parse_source(text) for text in (*texts, dumps)]
    found = [
        (r.source, r.name, r.kept_source, r.kept_name, r.words, round(r.similarity, 3))
        for r in duplicates.left_out(sources, dedup)
    ]
    assert found == expected
