r"""Draws examples that `bert-jax data inspect` prints as an SVG.

docs/images/masks.svg, from a store of Jane Austen's "Emma" and early works with 8,192 entries:

    FORCE_COLOR=1 COLUMNS=92 bert-jax data inspect --store=store --config=wiki_books_small \
        --examples=5 | python docs/images/terminal.py "row 2," "row 4," > docs/images/masks.svg
"""

import io
import re
import sys

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
 role="img" aria-label="Training examples with masked, random and kept tokens in colour">
<style>text {{ font: {char_height}px Menlo, Consolas, "DejaVu Sans Mono", monospace;
 white-space: pre; }} {styles}</style>
<rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>
<defs>{lines}</defs><g transform="translate(9, 9)">{backgrounds}{matrix}</g></svg>
"""


def chosen(printed: str, heads: list[str]) -> Text:
    """The examples whose first line begins with one of `heads`, a blank line between them."""
    examples = [Text.from_ansi(part) for part in re.split(r"\n\n(?=\S*row \d)", printed.rstrip())]
    return Text("\n\n").join(text for text in examples if text.plain.startswith(tuple(heads)))


def main() -> None:
    console = Console(record=True, file=io.StringIO(), width=92, force_terminal=True)
    console.print(chosen(sys.stdin.read(), sys.argv[1:]))
    svg = console.export_svg(code_format=SVG, theme=MONOKAI, unique_id="masks", title="")
    print(re.sub(r"\s+$", "", svg, flags=re.MULTILINE))


main()
