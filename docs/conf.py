"""The site of these pages: Sphinx with MyST, as JAX and Flax have it. `make docs` builds it.

The pages are written for GitHub. What a site needs besides is added while they are read: the index
begins with the README and gets the site's table of contents from its own lists, and links to files
outside docs/ lead to the repository. Nothing is fetched, and no code of the project is imported.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
URL = "https://github.com/bert-jax/bert-jax"

project = "bert-jax"
author = copyright = "The bert-jax authors"
(release,) = re.findall(r'^    version="(.*)",$', (ROOT / "setup.py").read_text("utf-8"), re.M)

extensions = ["myst_parser"]
myst_heading_anchors = 4  # GitHub's anchors, which the pages link to
html_theme = "furo"
html_title = f"bert-jax {release}"
html_copy_source = False
html_theme_options = {  # the link to a page's source
    "source_repository": URL,
    "source_branch": "main",
    "source_directory": "docs/",
}


def with_links(text: str, folder: Path, page: Path) -> str:
    """Returns text that was written for `folder`, with the links that a page of the site needs."""

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        if not path or path.startswith("https:"):
            return match[0]
        file = Path(os.path.normpath(folder / path))
        if file == ROOT / "README.md":
            file = DOCS / "index.md"
        if file.is_relative_to(DOCS):
            return f"]({os.path.relpath(file, page.parent)}{mark}{anchor})"
        return f"]({URL}/blob/main/{file.relative_to(ROOT)}{mark}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def toctree(pages: list[str], *options: str) -> str:
    """Returns a table of contents that GitHub has no form of, and that the site's sidebar shows."""
    lines = ["", "```{toctree}", ":hidden:", *options, "", *pages, "```", ""]
    return "\n".join(lines)


def adapt(_app: Sphinx, name: str, source: list[str]) -> None:
    """Makes a page of the site from a page as GitHub shows it."""
    page = DOCS / f"{name}.md"
    text = with_links(source[0], page.parent, page)
    if name == "index":
        readme = (ROOT / "README.md").read_text("utf-8")
        lists = re.split(r"^([\w ]+):$", source[0], flags=re.MULTILINE)[1:]
        trees = (
            toctree(re.findall(r"\]\((\w+)\.md\)", body), f":caption: {caption}")
            for caption, body in zip(lists[::2], lists[1::2], strict=True)
        )
        text = f"{with_links(readme, ROOT, page)}\n#{text}{''.join(trees)}"
    elif (DOCS / name).is_dir():
        text += toctree([f"{page.stem}/*"], ":glob:")
    source[0] = text


def setup(app: Sphinx) -> None:
    app.connect("source-read", adapt)
