"""The reader of dumps on a piece of a real one: agreement with WikiExtractor."""

import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data_pipeline.sources import parse_source, read
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import dump as benchmark  # noqa: E402

# Hashes of WikiExtractor 3.1.0's sentences; python benchmarks/dump.py … --golden writes them.
GOLDEN = ROOT / "tests/goldens/wikiextractor_sentences.npy"


@pytest.fixture(scope="module")
def fragment(real_data: Path) -> Path:
    return real_data / "wikipedia/enwiki-pages-articles-fragment.xml.bz2"


@pytest.mark.slow
def test_sentences_agree_with_wikiextractor(fragment: Path) -> None:
    spec = parse_source(f"dump:{fragment}")
    ours, theirs = benchmark.hashes(set(benchmark.sentences(spec))), np.load(GOLDEN)
    both = len(np.intersect1d(ours, theirs))
    assert len(theirs) > 18_000
    assert both / len(ours) >= 0.95
    assert both / len(theirs) >= 0.95


@pytest.mark.slow
def test_no_markup_is_left(real_data: Path) -> None:
    text = ""
    for name in ("pages-articles-fragment", "table-markup"):
        path = real_data / f"wikipedia/enwiki-{name}.xml.bz2"
        spec = parse_source(f"dump:{path}")
        text += "\n".join(cleaned(article, spec)[0] for article in read(spec, path))
    left = {mark: text.count(mark) for mark in ("[[", "]]", "{{", "}}", "<ref", "thumb|")}
    assert len(text) > 2_500_000
    assert sum(left.values()) <= 5, left


@pytest.mark.slow
def test_a_build_counts_what_is_no_article(fragment: Path, real_data: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(real_data / "vocab/bert-base-uncased-vocab.txt")
    spec = parse_source(f"dump:{fragment}")
    store = build_store([spec], tokenizer, tmp_path / "store", workers=1, progress=False)
    (entry,) = store.manifest["sources"]
    pages = {"disambiguation pages": 8, "pages of other namespaces": 1, "redirects": 99}
    assert entry["skipped"] == pages
    assert entry["documents"] == 206 - sum(pages.values())
    unknown = entry["unknown_templates"]
    assert len(unknown) == 10
    assert (unknown["eqm"], unknown["vr"]) == (12, 9)
    assert entry["rules"]["unknown_template"] > sum(unknown.values())
