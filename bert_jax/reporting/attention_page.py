"""The page of `bert-jax look attention`: layers and heads, and where tokens read.

The browser gets every weight in steps of a level, one byte each, compressed with zlib and written
in base64; it inflates them with DecompressionStream.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.errors import count
from bert_jax.reporting import html

_LEVELS: Final = (255, 127, 63, 31, 15)  # the most whose weights are small enough
_BYTES: Final = 1_450_000  # of compressed weights: in base64 a page is then below 2 MB
_WEIGHTS: Final = 24 * 16 * 128**2  # that have these bytes, and fewer; more have more
_MARKUP: Final = """
<noscript><p>This page needs JavaScript, which reads nothing but this file.</p></noscript>
<div class="look">
<section class="stays"><h2>Layers and heads</h2>
<p class="note">Each square is a head: a row for each token, coloured where it reads much.
Choose one, or all of a layer by its number; with Shift or the box, several, which are averaged.
Arrows move.</p>
<div class="controls"><label><input type="checkbox" id="several">average several heads</label>
<label><input type="checkbox" id="hidden">hide <span id="names"></span></label></div>
<div class="heads"><div id="heads"></div></div></section>
<section><h2>Which tokens a token reads</h2>
<p class="note">What a token on the left reads sums to 100&nbsp;% over the right. Point at a
token, or move with arrows, for its shares; a click or Enter holds it, Escape lets go.</p>
<div class="controls" id="pair" hidden><label>show <select id="direction">
<option value="all">all</option><option value="01">first text reads second</option>
<option value="10">second text reads first</option>
<option value="same">within each text</option></select></label>
<span><span class="first">first text</span> · <span class="second">second text</span></span></div>
<p class="state" id="state" aria-live="polite"></p>
<div class="tokens" id="tokens"></div></section></div>
"""


class Packed(NamedTuple):
    """Weights as a page holds them: base64 of zlib of a byte for each, in steps of 1 / levels;
    error: the largest difference."""

    text: str
    levels: int
    error: float


def pack(weights: np.ndarray) -> Packed:
    """Returns weights from 0 to 1, of any shape, with as many levels as their bytes allow."""
    most = _BYTES * max(1.0, weights.size / _WEIGHTS)
    for levels in _LEVELS:
        codes = np.rint(weights * levels).astype(np.uint8)
        # Runs and frequencies alone: smaller than with matches, and in a twentieth of the time.
        deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_RLE)
        data = deflate.compress(codes.tobytes()) + deflate.flush()
        if len(data) <= most:
            break
    steps = codes * np.float32(1 / levels)
    error = float(np.abs(steps - weights).max(initial=0))
    return Packed(base64.b64encode(data).decode(), levels, error)


def write_attention(
    path: epath.PathLike,
    *,
    texts: Sequence[str],
    tokens: Sequence[str],
    segments: np.ndarray,
    special: np.ndarray,
    weights: np.ndarray,
    facts: Mapping[str, str],
) -> None:
    """Writes the page.

    Args:
        texts: one or two, as the user gave them.
        tokens, segments, special, weights: as in `SentenceAttention`.
        facts: further lines about the model.
    """
    packed, (L, A, S, _) = pack(weights), weights.shape
    page = html.Page("What a model attends to", style="look_pages.css")
    page.sentences(texts)
    page.facts(
        {
            **facts,
            "weights": f"{count(L, 'layer')} of {count(A, 'head')}, {count(S, 'token')}, counted "
            "from 0, as attentions[layer][0, head] of transformers; "
            f"in steps of 1/{packed.levels}, at most {packed.error:.2%} from the model's own",
        }
    )
    page.interactive(
        _MARKUP,
        ("look_pages.js", "attention_page.js"),
        {
            "tokens": list(tokens),
            "segments": segments.tolist(),
            "special": special.astype(int).tolist(),
            "layers": L,
            "heads": A,
            "levels": packed.levels,
            "weights": packed.text,
        },
    )
    page.save(path)
