"""Sentence lengths, and where the splitter's boundaries differ from sentencex's.

    python benchmarks/sentences.py --source=books:/path --source=wikiextractor:/path
    python benchmarks/sentences.py --source=books:/path --files      # a line for every file

Prints for every source: words, sentences and the share of words in sentences of more than 100
words, for sentencex alone and for our splitter; the part of this share in lines without quotation
marks or brackets, which both split alike; and the share of lines where the two differ outside
quotations and brackets.
"""

# ruff: noqa: RUF001  (quotation marks of many languages)

import argparse
import re
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import sentencex

from bert_jax.data_pipeline.sources import SourceSpec, find, parse_source, read
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.text import sentences
from bert_jax.errors import UserError

LONG = 100  # words
_SPAN = re.compile(
    r"""\([^()]*\)|\[[^\[\]]*\]|"[^"]*"|“[^”]*”|‘[^’]*’(?!\w)|(?<!\w)'(?:[^']|'(?=\w))*'(?!\w)"""
)
_GAP = re.compile(rf"[\s{re.escape(sentences.MARKS)}]*")


@dataclass
class Measured:
    """Counts of some text; `alone` is sentencex, `ours` our splitter."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, line: str, pieces: list[str], alone: list[str]) -> None:
        """Counts a line."""
        plain = not any(mark in line for mark in sentences.MARKS)
        for name, found in (("ours", pieces), ("alone", alone)):
            for words in (len(piece.split()) for piece in found):
                self.counts[f"{name} sentences"] += words > 0
                self.counts[f"{name} long"] += words * (words > LONG)
                if name == "ours":
                    self.counts["words"] += words
                    self.counts["plain long"] += words * (plain and words > LONG)
        self.counts["lines"] += 1
        self.counts["changed"] += not plain and changed(line, pieces, alone)
        self.counts["plain changed"] += plain and pieces != alone

    def share(self, name: str, of: str = "words") -> float:
        """Returns the ratio of two counts."""
        return self.counts[name] / max(self.counts[of], 1)


def sentencex_alone(line: str, language: str) -> list[str]:
    """Splits a line with sentencex, but keeps "asyncio.CancelledError" in one piece."""
    pieces: list[str] = []
    for piece in sentencex.segment(language, line):
        if pieces and pieces[-1].endswith(".") and piece[:1].isalpha():
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces or [line]


def changed(line: str, pieces: list[str], alone: list[str]) -> bool:
    """Returns whether a boundary is missing, or a new one is outside all quotations and brackets.

    A boundary is the gap between the last character before it and the first after it that are
    neither a space nor a mark.
    """
    ours, theirs = _boundaries(line, pieces), _boundaries(line, alone)
    if theirs - ours:
        return True
    spans = [match.span() for match in _SPAN.finditer(line)]
    return any(not any(a < at <= b for a, b in spans) for at in ours - theirs)


def _boundaries(line: str, pieces: list[str]) -> set[int]:
    found, at = set(), 0
    for piece in pieces[:-1]:
        at += len(piece)
        start = at
        while start and _GAP.fullmatch(line[start - 1]):
            start -= 1
        found.add(start)
    return found


def measure(spec: SourceSpec, files: list[Path]) -> dict[str, Measured]:
    """Returns the counts of a source's cleaned text, by file."""
    result = {}
    for path in files:
        result[path.name] = measured = Measured()
        for document in read(spec, path):
            text, _ = cleaned(document, spec)
            if document.sentences_given:
                raise UserError(
                    f"source {spec.name!r}: its sentences are already split, nothing to measure"
                )
            for line, pieces in zip(
                text.split("\n"), sentences.cut(text, spec.language), strict=True
            ):
                measured.add(line, pieces, sentencex_alone(line, spec.language))
    return result


def total(parts: dict[str, Measured]) -> Measured:
    """Returns the sum of the counts."""
    return Measured(sum((part.counts for part in parts.values()), Counter()))


def report(spec: SourceSpec, by_file: bool) -> None:
    """Prints the figures of a source."""
    started = time.process_time()
    parts = measure(spec, find(spec).files)
    print(f"{spec.name}, {len(parts)} files, {time.process_time() - started:.1f} s")
    print(f"{'words':>12}{'sentences':>12}{'> 100 words':>12}{'alone':>9}{'no marks':>10}  file")
    rows = list(parts.items()) if by_file else []
    for name, part in [*rows, ("all", total(parts))]:
        c = part.counts
        print(
            f"{c['words']:>12,}{c['ours sentences']:>12,}{part.share('ours long'):>12.2%}"
            f"{part.share('alone long'):>9.2%}{part.share('plain long'):>10.2%}  {name}"
        )
    for name, text in (("ours", "with our splitter"), ("alone", "with sentencex alone")):
        shares = [part.share(f"{name} long") for part in parts.values()]
        print(f"median over files {text}: {statistics.median(shares):.2%}")
    everything = total(parts)
    print(
        f"lines with another boundary outside marks: {everything.share('changed', 'lines'):.2%} "
        f"of {everything.counts['lines']:,}; without marks: {everything.counts['plain changed']}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", action="append", help="kind:path, as for `bert-jax data build`")
    parser.add_argument("--files", action="store_true", help="a line for every file")
    options = parser.parse_args()
    try:
        for text in options.source or ["python"]:
            report(parse_source(text), options.files)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
