"""Files that are written and read as a source."""

from collections.abc import Callable
from pathlib import Path

from bert_jax.data_pipeline.sources import Document, find, parse_source, read

Written = Callable[..., list[Document]]


def documents(text: str) -> list[Document]:
    """Reads all documents of a source given as on the command line."""
    spec = parse_source(text)
    return [document for path in find(spec).files for document in read(spec, path)]


def writer(folder: Path) -> Written:
    """Returns what writes one file to a folder and reads it as a source."""

    def write(kind: str, name: str, data: str | bytes, options: str = "") -> list[Document]:
        data = data.encode() if isinstance(data, str) else data
        (folder / name).write_bytes(data)
        return documents(f"{kind}:{folder / name}{options}")

    return write
