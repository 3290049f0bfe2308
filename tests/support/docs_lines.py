"""The lines of the pages in docs/, as text to tokenize."""

from pathlib import Path


def docs_lines() -> list[str]:
    docs = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    return [line for page in docs for line in page.read_text("utf-8").splitlines() if line.strip()]
