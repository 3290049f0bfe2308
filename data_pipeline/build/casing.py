"""Refuses a vocabulary without capitals for text that keeps its capitals."""

from collections.abc import Sequence
from typing import Final

from bert_jax.data_pipeline.build.shard import cleaned
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources import Found, SourceSpec, read
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

_SAMPLE: Final = 1 << 18  # characters of each source that are looked at
_FEWEST_CAPITALS: Final = 0.005  # of the letters; English text has 3 %, a foreign name is no reason


def check_casing(
    tokenizer: Tokenizer, sources: Sequence[SourceSpec], found: Sequence[Found]
) -> None:
    """Raises UserError if the vocabulary has lower-case letters and no capitals, the tokenizer does
    not lower-case, and the text has both: every word with a capital would become [UNK]."""
    if not _lacks_capitals(tokenizer):
        return
    for spec, files in zip(sources, found, strict=True):
        letters, capitals, word = 0, 0, ""
        for text in _sample(spec, files):
            letters += sum(c.isalpha() for c in text)
            capitals += sum(c.isupper() for c in text)
            word = word or next((w for w in text.split() if w[0].isupper() and w[1:].islower()), "")
        if capitals > _FEWEST_CAPITALS * letters and word:
            raise UserError(
                f"source {spec.name!r}: its text has capitals (such as {word!r}), the vocabulary "
                "has lower-case letters only, and the tokenizer does not lower-case: words with a "
                "capital would be [UNK]; leave out --cased (in Python: lowercase=True), or use a "
                "cased vocabulary"
            )


def _lacks_capitals(tokenizer: Tokenizer) -> bool:
    special = set(tokenizer.special)
    entries = [tokenizer.token(i) for i in range(tokenizer.vocab_size) if i not in special]
    letters = {c for entry in entries if not entry.startswith(("[", "<")) for c in entry}
    if any(c.isupper() for c in letters):
        return False
    lower = sorted(c for c in letters if c.islower() and len(c.upper()) == 1 and c.upper() != c)
    if not lower:
        return False
    small, capital = (tokenizer.encode_batch([c])[0].tolist() for c in (lower[0], lower[0].upper()))
    return small != capital


def _sample(spec: SourceSpec, files: Found) -> list[str]:
    """Returns the cleaned text of a source's first documents."""
    texts, size = [], 0
    for path in files.files:
        for document in read(spec, path):
            text, _ = cleaned(document, spec)
            texts.append(text[:_SAMPLE])
            size += len(text)
            if size >= _SAMPLE:
                return texts
    return texts
