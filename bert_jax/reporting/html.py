"""Reports as one self-contained HTML file, with plots as inline SVG."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.data_pipeline.storage.remote import write_named

if TYPE_CHECKING:
    from bert_jax.data_pipeline.analysis.inspect import ShownExample, ShownToken

_MARK = '<meta name="generator" content="bert-jax">'
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{mark}
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2733; background: #fff; }}
h1, h2 {{ line-height: 1.2; }} h2 {{ margin-top: 2.5rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #dde3ea; text-align: left; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.example {{ border-left: 3px solid #dde3ea; padding-left: 1rem; overflow-wrap: anywhere; }}
.special {{ color: #8a97a5; }} .edge {{ text-decoration: underline; }}
.masked, .random, .kept {{ border-radius: 3px; padding: 0 .2em; }}
.masked {{ background: #fff1c2; }} .random {{ background: #ffd6e4; }}
.kept {{ background: #d8f2dc; }}
svg {{ max-width: 100%; height: auto; }}
figcaption, .note {{ color: #5a6a7a; }} figure {{ margin: 1rem 0; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


class Page:
    """Collects sections; `save` writes them as one self-contained file.

    All text is escaped here, whatever its source; only figures are inserted as markup.
    """

    def __init__(self, title: str):
        self._title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Right-aligns numbers and percentages; floats have four significant digits."""
        head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def figure(self, svg: str, caption: str) -> None:
        self._parts.append(f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>")

    def examples(self, examples: "Sequence[ShownExample]", heads: Sequence[str]) -> None:
        """Adds decoded examples below their headings, with predicted tokens highlighted."""
        kinds = {
            "masked": "[MASK]→original",
            "random": "random→original",
            "kept": "unchanged→original",
            "edge": "next to a span",
        }
        legend = " ".join(f'<span class="{kind}">{text}</span>' for kind, text in kinds.items())
        self._parts.append(f'<p class="note">{legend}</p>')
        for example, head in zip(examples, heads, strict=True):
            body = "".join(map(_token, example.tokens))
            self._parts.append(
                f'<div class="example"><p class="note">{html.escape(head)}</p>'
                f'<p dir="auto">{body}</p></div>'
            )

    def save(self, path: epath.PathLike) -> None:
        """Writes the page atomically; StorageError if it cannot be written."""
        title, body = html.escape(self._title), "\n".join(self._parts)
        page = _PAGE.format(mark=_MARK, title=title, body=body)
        # File names may hold lone surrogates.
        write_named(path, page.encode(errors="backslashreplace"))


def is_page(path: epath.PathLike) -> bool:
    """Whether a file is a page written by `Page.save`, which may be overwritten."""
    with epath.Path(path).open("rb") as file:
        return _MARK.encode() in file.read(1000)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:.4g}"
    elif isinstance(value, int):
        value = f"{value:,}"
    elif not str(value).endswith("%"):
        return f"<td>{html.escape(str(value))}</td>"
    return f'<td class="number">{html.escape(str(value))}</td>'


def _token(token: "ShownToken") -> str:
    space, text = " " if token.space else "", html.escape(token.label)
    kinds = f"{token.kind} edge" if token.edge else token.kind
    return space + (text if kinds == "plain" else f'<span class="{kinds}">{text}</span>')
