"""The reader of Wikipedia dumps: its speed, and its agreement with WikiExtractor.

    python benchmarks/dump.py enwiki-pages-articles.xml.bz2
    python benchmarks/dump.py enwiki-pages-articles.xml.bz2 --wikiextractor=venv/bin/python

The first prints the processor time of each stage, of the reader in total, and of parsing alone; and
how much longer a page takes that is ten times as long, which is 10 where time is linear. The second
runs WikiExtractor from an environment of its own (AGPL; `pip install wikiextractor==3.1.0`) and
compares sentences of at least six words per article, both cleaned by the same rules; `--golden`
writes the hashes of WikiExtractor's for tests/data_pipeline/test_dump_real.py.
"""

import argparse
import dataclasses
import functools
import hashlib
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import numpy as np

from bert_jax.data_pipeline.sources import Document, SourceSpec, find, parse_source, read
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.text.sentences import split

ROUNDS = 5
LONGER = 10
GROWN = 20  # articles that are read at this length, too
FEWEST_WORDS = 6


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("dump", type=Path, help="a small dump: all of it is held in memory")
    parser.add_argument("--wikiextractor", type=Path, help="a Python that has WikiExtractor")
    parser.add_argument("--golden", type=Path, help="write the hashes of its sentences (.npy)")
    parser.add_argument("--differences", type=int, default=10, help="sentences to print (10)")
    options = parser.parse_args()
    with harness.errors_are_one_line():
        if options.wikiextractor:
            compare(options)
        else:
            measure(parse_source(f"dump:{options.dump}"))


# Speed -------------------------------------------------------------------------------------------


def measure(spec: SourceSpec) -> None:
    """Prints medians of interleaved rounds."""
    import mwparserfromhell

    (path,) = find(spec).files
    articles = [*read(spec, path)]
    size = sum(len(article.text.encode()) for article in articles)

    def parse() -> None:
        for article in articles:
            mwparserfromhell.parse(article.text, skip_style_tags=True)

    def walk() -> None:
        for article in articles:
            assert article.plain_text
            article.plain_text(article.text)

    def everything() -> None:
        for article in read(spec, path):
            cleaned(article, spec)

    stages: dict[str, Callable[[], object]] = {
        "bzip2 and XML": lambda: [*read(spec, path)],
        "parsing alone": parse,
        "parsing and walk": walk,
        "reader in total": everything,
    }
    timed = {
        name: functools.partial(harness.seconds, stage, time.process_time)
        for name, stage in stages.items()
    }
    medians = harness.medians(timed, ROUNDS)
    print(f"{len(articles)} articles, {size / 1e6:.2f} MB of wikitext, medians of {ROUNDS} rounds")
    harness.record(articles=len(articles), bytes=size, seconds=medians)
    for name, median in medians.items():
        print(f"{name:>16}  {median:6.2f} s  {size / 1e6 / median:6.2f} MB/s of wikitext")
    ratio = medians["parsing alone"] / medians["reader in total"]
    rate = path.stat().st_size / 1e6 / medians["reader in total"]
    print(
        f"the reader runs at {ratio:.2f} times the speed of parsing alone; {rate:.2f} MB/s of file"
    )
    print_growth(articles, spec)


def print_growth(articles: list[Document], spec: SourceSpec) -> None:
    """Prints the ratio of the time of articles ten times as long to that of the articles."""
    ratios = []
    for article in random.Random(0).sample(articles, min(GROWN, len(articles))):
        once, often = (seconds_of(article, times, spec) for times in (1, LONGER))
        ratios.append(often / once)
    harness.record(growth=ratios)
    print(
        f"a page {LONGER} times as long takes {statistics.median(ratios):.1f} times as long "
        f"(median of {len(ratios)}; at most {max(ratios):.1f})"
    )


def seconds_of(article: Document, times: int, spec: SourceSpec) -> float:
    """Returns the processor time of a text that is repeated, the least of three."""
    longer = dataclasses.replace(article, text="\n\n".join([article.text] * times))
    clean = functools.partial(cleaned, longer, spec)
    return min(harness.seconds(clean, time.process_time) for _ in range(3))


# Agreement ---------------------------------------------------------------------------------------


def compare(options: argparse.Namespace) -> None:
    ours = set(sentences(parse_source(f"dump:{options.dump}")))
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "wikiextractor.WikiExtractor", "--json", "--no-templates", "--quiet"]
        words += ["--processes=1", "-o", folder, options.dump]
        subprocess.run([options.wikiextractor, *words], check=True)
        theirs = set(sentences(parse_source(f"wikiextractor:{folder}")))
    articles = {title for title, _ in ours}
    theirs = {(title, sentence) for title, sentence in theirs if title in articles}
    for name, own, other in (("this reader", ours, theirs), ("WikiExtractor", theirs, ours)):
        share = len(own & other) / len(own)
        print(f"{name}: {len(own):,} sentences, {share:.1%} of them the other has, too")
    for name, only in (("this reader", ours - theirs), ("WikiExtractor", theirs - ours)):
        print(f"\nonly in {name}:")
        for title, sentence in random.Random(0).sample(sorted(only), options.differences):
            print(f"  {title}: {sentence}")
    if options.golden:
        np.save(options.golden, hashes(theirs))


def sentences(spec: SourceSpec) -> Iterator[tuple[str, str]]:
    """Yields the title of an article and a sentence, for all that are long enough."""
    for path in find(spec).files:
        for article in read(spec, path):
            yield from sentences_of(article, spec)


def sentences_of(article: Document, spec: SourceSpec) -> Iterator[tuple[str, str]]:
    for sentence in split(cleaned(article, spec)[0], spec.language):
        if len(sentence.split()) >= FEWEST_WORDS:
            yield article.title, sentence


def hashes(found: set[tuple[str, str]]) -> np.ndarray:
    """Returns 32 bits of a hash of each, sorted; equal ones are one."""
    digests = (hashlib.sha256("\n".join(pair).encode()).digest()[:4] for pair in found)
    return np.unique(np.frombuffer(b"".join(digests), "<u4"))


if __name__ == "__main__":
    main()
