"""Source kind `documents`: Python objects, written to files by `bert_jax.build_store`.

A file has one document per line: a JSON string, of which every line is a paragraph, or a JSON list
of sentences.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.kind import Kind
from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.errors import UserError
from bert_jax.storage import json_record

_FILE_BYTES: Final = 16 << 20  # of text, after which the next file starts

Text = str | Sequence[str]  # a text, or its sentences
Content = Text | Mapping[str, Any]


def find(spec: SourceSpec) -> Found:
    """Returns the files that `write` wrote."""
    return Found(sorted(spec.path.glob("*.jsonl")), {})


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the documents of one file."""
    for line in lines(part.path):
        text = json_record.parse(line)
        if isinstance(text, str):
            yield Document(text)
        else:
            sentences = (" ".join(sentence.split()) for sentence in text)
            yield Document("\n".join(sentences), sentences_given=True)


def write(documents: Iterable[Content], folder: Path, field: str) -> None:
    """Writes documents to numbered files in a folder.

    Args:
        documents: strings, lists of sentences, or mappings that hold one of these.
        field: key of the text in a mapping.

    Raises:
        UserError: `documents` is empty or not an iterable of documents.
        Exception: whatever iterating over `documents` raises, with a note.
    """
    texts = _texts(documents, field)
    for number in itertools.count():
        first = next(texts, None)
        if first is None:
            break
        with (folder / f"{number:06}.jsonl").open("wb") as file:
            for text in itertools.chain([first], texts):
                file.write(_line(text))
                if file.tell() >= _FILE_BYTES:
                    break
    if not number:
        raise UserError("no documents: the iterable is empty, or it was read before")


def _texts(documents: Iterable[Content], field: str) -> Iterator[Text]:
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Iterable):
        hint = ", such as one of its values" if isinstance(documents, Mapping) else ""
        raise UserError(
            f"documents has type {type(documents).__name__}; give an iterable of documents{hint}"
        )
    iterator = iter(documents)
    for number in itertools.count():
        try:
            document = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            error.add_note(f"raised by documents after {number:,} of them; no store is written")
            raise
        yield _text(document, field, f"document {number:,}")


def _text(document: Content, field: str, where: str) -> Text:
    """Returns the text or the sentences of a document; UserError if it has none."""
    text: Any = document
    if isinstance(document, Mapping):
        if field not in document:
            keys = ", ".join(map(repr, document)) or "no key"
            raise UserError(f"{where} has no key {field!r}; give field=… (it has {keys})")
        text, where = document[field], f"{where}[{field!r}]"
        text = "" if text is None else text  # as the other readers of rows
    is_list = isinstance(text, list | tuple) and all(isinstance(part, str) for part in text)
    if not is_list and not isinstance(text, str):
        raise UserError(
            f"{where} has type {type(text).__name__}; give a string, a list of strings (its "
            f"sentences), or a mapping that holds one of these in {field!r}"
        )
    return text


def _line(text: Text) -> bytes:
    try:
        return json.dumps(text, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which `sources.read` replaces
        return json.dumps(text).encode() + b"\n"


KIND: Final = Kind(find, read)  # `write` makes files of the size of a range
