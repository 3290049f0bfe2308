"""A report as a list of sections, which a text and a page show."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bert_jax.reporting.html import Page
from bert_jax.runtime import console


class Table(NamedTuple):
    """The first column names the rows: it stands last in a text.

    header: a text omits a header of empty names.
    columns, lines: how many of them a text shows; None: all.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    columns: int | None = None
    lines: int | None = None


class Figure(NamedTuple):
    """A plot, which only a page shows. draw: returns it as SVG."""

    draw: Callable[[], str]
    caption: str


Part = str | Table | Figure


class Section(NamedTuple):
    """heading: shown on a page only. in_text: whether a text shows the section."""

    heading: str
    parts: Sequence[Part]
    in_text: bool = True


def as_text(sections: Iterable[Section]) -> str:
    """Returns the sections with an empty line between them."""
    shown = (section.parts for section in sections if section.in_text)
    return "\n\n".join("\n".join(filter(None, map(_text, parts))) for parts in shown)


def add(page: Page, sections: Iterable[Section]) -> None:
    """Adds the sections to a page."""
    for section in sections:
        page.heading(section.heading)
        for part in section.parts:
            match part:
                case Table():
                    page.table(part.header, part.rows)
                case Figure():
                    page.figure(part.draw(), part.caption)
                case str():
                    page.text(part)


def _text(part: Part) -> str:
    match part:
        case Table():
            shown = (row[: part.columns] for row in (part.header, *part.rows[: part.lines]))
            header, *rows = ((*row[1:], row[0]) for row in shown)
            lines = console.table(header, rows).splitlines()
            return "\n".join(f"  {line}" for line in lines[0 if any(header) else 1 :])
        case Figure():
            return ""
        case str():
            return part
