"""A small multistream dump, as Wikimedia writes them: a head, streams of whole pages, an end."""

import bz2
from collections.abc import Sequence
from pathlib import Path

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de">
  <siteinfo><namespaces>
    <namespace key="0" /><namespace key="6">Datei</namespace>
    <namespace key="14">Kategorie</namespace>
  </namespaces></siteinfo>
"""
END = "</mediawiki>\n"


def page(title: str, text: str, namespace: int = 0, more: str = "") -> str:
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    {more}\n"
        f"    <revision>\n      <text>{text}</text>\n    </revision>\n  </page>\n"
    )


def articles(count: int) -> list[str]:
    text = f"&lt;b&gt;{'many ' * 40}&lt;/b&gt; pages."
    return [page(f"T{n}", f"Page {n} of {text}") for n in range(count)]


def multistream(pages: Sequence[str], size: int = 5) -> bytes:
    streams = ["".join(pages[at : at + size]) for at in range(0, len(pages), size)]
    return b"".join(bz2.compress(text.encode()) for text in (HEAD, *streams, END))


def write(path: Path) -> None:
    path.write_bytes(multistream(articles(40)))
