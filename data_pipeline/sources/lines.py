"""Source kind `lines`: one sentence per line, a blank line between documents.

This is the input format of google-research/bert `create_pretraining_data.py` (README, "Pre-training
with BERT"). A file without a blank line would be one huge document: it is cut into documents of
`document_lines` lines, and so is any document more than a hundred times that long.
"""

from collections.abc import Iterator
from itertools import chain, groupby, islice
from pathlib import Path

from bert_jax.data_pipeline.sources import finding
from bert_jax.data_pipeline.sources.document import Document, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import extension
from bert_jax.data_pipeline.sources.reading import cut, lines
from bert_jax.data_pipeline.text.clean import Rule

RULES: tuple[Rule, ...] = ()
MARKUP = True
CUT_BECAUSE = "no blank lines between documents"
CUT_REMEDY = "put a blank line between documents"
_ENDLESS = 100  # times document_lines


def find(spec: SourceSpec) -> Found:
    """Returns the .txt files (also compressed) of the source."""
    described = ".txt files with one sentence per line"
    return finding.find(spec, lambda path: extension(path) == ".txt", described)


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """Yields the documents of one file, already split into sentences."""
    size = spec.document_lines
    limit = size * _ENDLESS if _has_boundary(path) else size
    runs = (run for filled, run in groupby(lines(path), lambda s: bool(s.strip())) if filled)
    for text, was_cut in chain.from_iterable(cut(run, limit, size) for run in runs):
        yield Document("\n".join(text), sentences_given=True, cut=was_cut)


def _has_boundary(path: Path) -> bool:
    """Returns whether a blank line separates two non-blank lines."""
    filled = (bool(line.strip()) for line in lines(path, markup=MARKUP))
    return sum(islice((has_text for has_text, _ in groupby(filled)), 4)) > 1
