"""Source kind `lines`: one sentence a line, a blank line between documents.

This is the input of google-research/bert `create_pretraining_data.py` (README, "Pre-training with
BERT"). A file without a blank line inside would be one endless document: it is cut into documents
of `document_lines` lines, and so is a document a hundred times that long.
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
    """The .txt files (also compressed) of the source."""
    described = ".txt files of one sentence a line"
    return finding.find(spec, lambda path: extension(path) == ".txt", described)


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """The documents of one file, their sentences given."""
    size = spec.document_lines
    limit = size * _ENDLESS if _has_boundary(path) else size
    runs = (run for filled, run in groupby(lines(path), lambda s: bool(s.strip())) if filled)
    pieces = chain.from_iterable(cut(run, limit, size) for run in runs)
    for number, (text, was_cut) in enumerate(pieces, 1):
        yield Document(
            id=f"{path.name}#{number}",
            source=spec.name,
            language=spec.language,
            text="\n".join(text),
            sentences_given=True,
            cut=was_cut,
        )


def _has_boundary(path: Path) -> bool:
    """Whether a blank line stands between two filled ones."""
    filled = (bool(line.strip()) for line in lines(path, markup=MARKUP))
    return sum(islice((has_text for has_text, _ in groupby(filled)), 4)) > 1
