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


def page(
    title: str,
    text: str,
    namespace: int = 0,
    more: str = "",
    *,
    text_as: str = "",
    form: str = "",
    more_text: str = "",
) -> str:
    """A page; `more`: elements of it, `text_as`, `form`: model and format, `more_text`: of a slot
    besides the main one."""
    said = f"<model>{text_as}</model><format>{form}</format>" if text_as else ""
    slot = f"<content><model>json</model><text>{more_text}</text></content>" if more_text else ""
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    {more}\n"
        f"    <revision>\n      {said}<text>{text}</text>{slot}\n    </revision>\n  </page>\n"
    )


def articles(count: int) -> list[str]:
    text = f"&lt;b&gt;{'many ' * 40}&lt;/b&gt; pages."
    return [page(f"T{n}", f"Page {n} of {text}") for n in range(count)]


def multistream(pages: Sequence[str], size: int = 5) -> bytes:
    streams = ["".join(pages[at : at + size]) for at in range(0, len(pages), size)]
    return b"".join(bz2.compress(text.encode()) for text in (HEAD, *streams, END))


def write(path: Path) -> None:
    path.write_bytes(multistream(articles(40)))
