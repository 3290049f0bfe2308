"""Reports as one self-contained HTML file, with plots as inline SVG."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from etils import epath

from bert_jax.storage.outputs import OutputKind, write_output
from bert_jax.storage.read_files import open_bytes, read_bytes

if TYPE_CHECKING:
    from bert_jax.data_pipeline.analysis.inspect import ShownExample, ShownToken

_MARK = '<meta name="generator" content="bert-jax">'
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2733; background: #fff; overflow-wrap: anywhere; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
p { max-width: 52rem; }
.headline { font-size: 1.2rem; } .headline strong { font-size: 3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { color: #5a6a7a; } dd { margin: 0; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; min-width: min(100%, 40rem); overflow-wrap: normal; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #dde3ea; text-align: left;
         vertical-align: top; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
pre { background: #f2f5f8; padding: .6rem .8rem; border-radius: 4px; overflow-x: auto; }
.grid { display: grid; gap: 1rem 2rem; align-items: start;
        grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.grid > * { min-width: 0; }
.example { border-left: 3px solid #dde3ea; padding-left: 1rem; }
.example p { margin: .3rem 0; }
.guess { display: inline-block; border: 1px solid #dde3ea; border-radius: 3px; padding: 0 .4em;
         margin: .1rem .3rem .1rem 0; max-width: 100%; box-sizing: border-box; }
.special { color: #8a97a5; } .edge { text-decoration: underline; }
.masked, .random, .kept { border-radius: 3px; padding: 0 .2em; }
.masked { background: #fff1c2; } .random { background: #ffd6e4; }
.kept, .right { background: #d8f2dc; }
svg { display: block; width: 100%; max-width: 36rem; height: auto; }
td.text { min-width: 12rem; } td.text ~ td { white-space: nowrap; }
figcaption, .note { color: #5a6a7a; } figure { margin: 1rem 0; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; } th, td { padding: .3rem .5rem; }
  dl { display: block; } dd { margin-bottom: .5rem; }
}
@media (prefers-color-scheme: dark) {
  html { color-scheme: dark; }
  body { color: #dce3ea; background: #14191f; } dt, figcaption, .note { color: #9fb0c0; }
  th, td, .example, .guess { border-color: #36424e; } pre { background: #1f2730; }
  .masked { background: #5c4a12; } .random { background: #6b2440; }
  .kept, .right { background: #1e5230; }
  svg { filter: invert(.88) hue-rotate(180deg); }
}
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{mark}{refresh}{policy}
<title>{title}</title>
<style>{style}</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""
_NUMBER = re.compile(
    r"[-+\u2212]?[\d.,]*\d(e[-+]\d+)?( ?%| [KMG]iB| hours| m?s| M)?|(\d+:)+\d\d|nan|inf"
)


class ShownFill(NamedTuple):
    """A sentence with a hidden word, and a model's guesses for it: (token, probability)."""

    before: str
    word: str
    after: str
    guesses: Sequence[tuple[str, float]]


class Marked(NamedTuple):
    """A text that stands out, as of a class of the style: "masked" or "right"."""

    text: str
    kind: str


Parts = list[str | Marked]  # a cell of a table: texts one after the other


class Page:
    """Collects sections; `save` writes them as one self-contained file.

    All text is escaped here, whatever its source; only figures, and the markup and the script of
    `interactive`, are inserted as they are.
    """

    def __init__(self, title: str, *, refresh: int = 0, style: str = ""):
        """
        Args:
            refresh: seconds after which a browser reads the file again; 0: never.
            style: a file of this folder with further style.
        """
        self._title, self._refresh = title, refresh
        self._style = _STYLE + (_packaged(style) if style else "")
        self._parts: list[str] = []
        self._policy = ""

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def headline(self, number: str, what: str) -> None:
        """Adds one number in large type, and what it says."""
        self._parts.append(
            f'<p class="headline"><strong>{html.escape(number)}</strong> {html.escape(what)}</p>'
        )

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def facts(self, values: Mapping[str, str]) -> None:
        """Adds a list of names and what they are."""
        escaped = ((html.escape(name), html.escape(value)) for name, value in values.items())
        items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in escaped)
        self._parts.append(f"<dl>{items}</dl>")

    def commands(self, steps: Iterable[tuple[str, str]]) -> None:
        """Adds what to do next: (purpose, command) of each."""
        self.heading("What to do next")
        for purpose, command in steps:
            self.text(purpose)
            self.code(command)

    def code(self, text: str) -> None:
        """Adds lines to be typed."""
        self._parts.append(f"<pre><code>{html.escape(text)}</code></pre>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Right-aligns columns of numbers and percentages; floats have four significant digits.
        A cell may be `Parts`; a column of these has room for a sentence."""
        texts = [[*map(_text, row)] for row in rows]
        marks = [*map(_mark, zip(*texts, strict=True))] or [""] * len(header)
        head = _row("th", header, marks)
        body = "".join(_row("td", row, marks) for row in texts)
        self._parts.append(
            f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
        )

    def figure(self, svg: str, caption: str) -> None:
        self.figures([(svg, caption)])

    def figures(self, figures: Iterable[tuple[str, str]]) -> None:
        """Adds (SVG, caption) of figures, next to one another where the window is wide."""
        shown = (
            f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"
            for svg, caption in figures
        )
        self._parts.append(f'<div class="grid">{"".join(shown)}</div>')

    def sentences(self, sentences: Iterable[str]) -> None:
        """Adds sentences of a text."""
        shown = (f'<p class="example" dir="auto">{html.escape(text)}</p>' for text in sentences)
        self._parts.append("".join(shown))

    def fills(self, fills: Iterable[ShownFill]) -> None:
        """Adds sentences with their hidden word highlighted above the guesses for it."""
        self._parts.append(f'<div class="grid">{"".join(map(_fill, fills))}</div>')

    def examples(self, examples: "Sequence[ShownExample]", heads: Sequence[str]) -> None:
        """Adds decoded examples below their headings, with predicted tokens highlighted."""
        kinds = {
            "masked": "[MASK]→original",
            "random": "random→original",
            "kept": "unchanged→original",
        }
        if any(token.edge for example in examples for token in example.tokens):
            kinds["edge"] = "next to a span"
        legend = " ".join(f'<span class="{kind}">{text}</span>' for kind, text in kinds.items())
        self._parts.append(f'<p class="note">{legend}</p>')
        shown = (
            f'<div class="example"><p class="note">{html.escape(head)}</p>'
            f'<p dir="auto">{"".join(map(_token, example.tokens))}</p></div>'
            for example, head in zip(examples, heads, strict=True)
        )
        self._parts.append(f'<div class="grid">{"".join(shown)}</div>')

    def interactive(self, markup: str, scripts: Sequence[str], data: Mapping[str, Any]) -> None:
        """Adds markup and scripts that fill it, once in a page. No other script of the page is run,
        and nothing is requested.

        Args:
            markup: of this package, without text of others.
            scripts: files of this folder, which become one script.
            data: JSON values; the script reads them from the element "data".
        """
        code = "".join(map(_packaged, scripts))
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        self._policy = (
            '\n<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">"
        )
        values = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        self._parts.append(
            f'{markup}<script type="application/json" id="data">{values}</script>'
            f"<script>{code}</script>"
        )

    def save(self, path: epath.PathLike, *, inputs: Iterable[epath.PathLike] = ()) -> None:
        """Writes the page atomically, as `write_output` does, outside these inputs."""
        title, body = html.escape(self._title), "\n".join(self._parts)
        again = f'\n<meta http-equiv="refresh" content="{self._refresh}">' if self._refresh else ""
        page = _PAGE.format(
            mark=_MARK, refresh=again, policy=self._policy, title=title, style=self._style,
            body=body,
        )  # fmt: skip
        # File names may hold lone surrogates.
        write_output(path, page.encode(errors="backslashreplace"), PAGE, inputs=inputs)


def _packaged(name: str) -> str:
    """Returns the text of a file of this folder."""
    return read_bytes(Path(__file__).with_name(name)).decode()


def _is_page(path: epath.PathLike) -> bool:
    """Returns whether a file is a page written by `Page.save`, which may be overwritten."""
    with open_bytes(path, ahead=False) as file:
        return _MARK.encode() in file.read(1000)


PAGE: Final = OutputKind("page", _is_page)


def _text(value: Any) -> str | Parts:
    if isinstance(value, list):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mark(column: Iterable[str | Parts]) -> str:
    """Returns the attribute of the cells of a column."""
    filled = [cell for cell in column if cell]
    if any(isinstance(cell, list) and len(cell) > 1 for cell in filled):
        return ' class="text"'
    numbers = all(isinstance(cell, str) and _NUMBER.fullmatch(cell) for cell in filled)
    return ' class="number"' if numbers else ""


def _row(tag: str, cells: Iterable[str | Parts], marks: Iterable[str]) -> str:
    shown = (f"<{tag}{mark}>{_cell(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))
    return f"<tr>{''.join(shown)}</tr>"


def _cell(cell: str | Parts) -> str:
    return "".join(
        f'<span class="{part.kind}">{html.escape(part.text)}</span>'
        if isinstance(part, Marked)
        else html.escape(part)
        for part in ([cell] if isinstance(cell, str) else cell)
    )


def _fill(fill: ShownFill) -> str:
    before, word, after = map(html.escape, (fill.before, fill.word, fill.after))
    guesses = (
        f'<span class="guess{" right" if token == fill.word else ""}">'
        f"{html.escape(token)} {probability:.0%}</span>"
        for token, probability in fill.guesses
    )
    return (
        f'<div class="example"><p dir="auto">{before}<span class="masked">{word}</span>{after}</p>'
        f"<p>{''.join(guesses)}</p></div>"
    )


def _token(token: "ShownToken") -> str:
    space, text = " " if token.space else "", html.escape(token.label)
    kinds = f"{token.kind} edge" if token.edge else token.kind
    return space + (text if kinds == "plain" else f'<span class="{kinds}">{text}</span>')
