"""The page of `bert-jax look neighbours`: the nearest words of each word, as bars."""

import html
from collections.abc import Mapping, Sequence
from typing import Final

from etils import epath

from bert_jax.reporting.html import Page

_ROW: Final = 26  # pixels of a line
_WORD, _BAR, _WIDTH = 130, 170, 360  # of the words, of the longest bar, of all
_LONGEST: Final = 16  # signs of a word that is shown


def write_neighbours(
    path: epath.PathLike,
    nearest: Mapping[str, Sequence[tuple[str, float]]],
    facts: Mapping[str, str],
) -> None:
    """Writes the page; nearest: words, each with (word, cosine) of those next to it."""
    page = Page("Nearest words", style="look_pages.css")
    page.facts(facts)
    page.text("By the cosine of their rows in the table of word embeddings, without any context.")
    page.figures([(_bars(word, near), "") for word, near in nearest.items()])
    page.save(path)


def _bars(asked: str, near: Sequence[tuple[str, float]]) -> str:
    """Returns an SVG with a bar for each word, below the one that they are near to."""
    rows = [
        f'<text x="{_WORD}" y="{_ROW / 2}" dominant-baseline="central" fill="currentColor" '
        f'font-weight="bold">{html.escape(asked)}</text>'
    ]
    for i, (word, cosine) in enumerate(near, 1):
        shown = word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…"
        middle, length = _ROW * i + _ROW / 2, max(0.0, cosine) * _BAR
        rows.append(
            f'<text x="{_WORD - 8}" y="{middle}" text-anchor="end" dominant-baseline="central" '
            f'fill="currentColor">{html.escape(shown)}<title>{html.escape(word)}</title></text>'
            f'<rect x="{_WORD}" y="{middle - 8}" width="{length:.1f}" height="16" rx="2" '
            f'class="bar"/>'
            f'<text x="{_WORD + length + 6:.1f}" y="{middle}" dominant-baseline="central" '
            f'fill="currentColor" font-size="12">{cosine:.2f}</text>'
        )
    height = _ROW * (1 + len(near))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" font-size="15" '
        f'style="max-width: {_WIDTH}px">{"".join(rows)}</svg>'
    )
