"""The page of `bert-jax look senses`: a word in many sentences, by layer, coloured by sense."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.reporting.html import Page

_TITLES: Final = ("layer", "nearest sense is right", "95 % interval", "variance in the picture")
_SIDE: Final = 1000  # steps of a picture from its middle to a side
_MARKUP: Final = """
<noscript><p>The picture needs JavaScript, which reads nothing but this file.</p></noscript>
<div class="look">
<section><h2>The word in its sentences</h2>
<div class="controls"><label>layer <input type="range" id="layer" min="0" value="0"></label>
<span class="state" id="state" aria-live="polite"></span></div>
<div class="controls" id="senses"></div>
<svg id="picture" tabindex="0" role="img" viewBox="-110 -110 220 220"
 aria-label="A point for each sentence; arrows go from one to the next"></svg>
<p class="note" id="outlined">Outlined: nearer to another sense.</p>
<p class="read" id="sentence" aria-live="polite" dir="auto">Point at a sentence, or choose the
picture and press arrows.</p></section>
<section id="scores"><h2>How often the nearest sense is right</h2>
<p class="note">The sense whose mean vector, over the other sentences, is nearest. The line is the
share of the most frequent sense. Choose a layer.</p>
<div class="bars" id="bars"></div>
<h2>Nearer to another sense</h2>
<div id="wrong"></div></section></div>
"""


class Shown(NamedTuple):
    """A sentence: the text before the word, the word, and the text after it."""

    before: str
    word: str
    after: str


def write_senses(
    path: epath.PathLike,
    *,
    sentences: Sequence[Shown],
    names: Sequence[str],
    labels: np.ndarray,
    components: np.ndarray,
    nearest: np.ndarray | None,
    facts: Mapping[str, str],
    rows: Sequence[Sequence[str]],
) -> None:
    """Writes the page.

    Args:
        names, labels, components, nearest: as in `Senses`.
        facts: about the model and the sentences.
        rows: of the table by layer, see `_TITLES`; without labels the first and last column.
    """
    word = _most_common([one.word for one in sentences])
    page = Page(f"Senses of “{word}”", style="look_pages.css")
    page.facts(facts)
    sizes = np.maximum(np.abs(components).max(axis=(1, 2), keepdims=True), np.finfo(float).tiny)
    page.interactive(
        _MARKUP,
        ("look_pages.js", "senses_page.js"),
        {
            "sentences": [list(one) for one in sentences],
            "names": list(names),
            "labels": labels.tolist(),
            "points": np.rint(components / sizes * _SIDE).astype(int).reshape(len(sizes), -1)
            .tolist(),
            "nearest": None if nearest is None else nearest.tolist(),
            "side": _SIDE,
        },
    )  # fmt: skip
    page.heading("By layer")
    page.text(
        "Layer 0 is the embeddings, which do not read the context. A picture shows the two "
        "directions in which the vectors of its layer vary most."
    )
    page.table(_TITLES if nearest is not None else (_TITLES[0], _TITLES[-1]), rows)
    page.save(path)


def _most_common(words: Sequence[str]) -> str:
    """Returns the most common of words, in lower case."""
    lower = [word.lower() for word in words]
    return max(dict.fromkeys(lower), key=lower.count)
