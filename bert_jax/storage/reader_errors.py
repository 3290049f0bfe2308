"""Exceptions of readers for a damaged file: a tuple for each library, and one way to report them.

These tuples are the only ones: a library that raises one more for some damage gets it here.
"""

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from xml.etree.ElementTree import ParseError

from bert_jax.errors import UserError

Errors = tuple[type[BaseException], ...]

JSON_ERRORS: Final[Errors] = (ValueError, RecursionError)  # UnicodeDecodeError is a ValueError
YAML_ERRORS: Final[Errors] = (*JSON_ERRORS, LookupError, TypeError)  # beside those of PyYAML
# Of gzip, bz2, lzma; damaged data of bz2 and gzip are an OSError, which storage_errors reports.
DECOMPRESSION_ERRORS: Final[Errors] = (EOFError, zlib.error, lzma.LZMAError)
ZIP_ERRORS: Final[Errors] = (
    *DECOMPRESSION_ERRORS,
    *(zipfile.BadZipFile, struct.error, OSError),
    *(ValueError, IndexError, OverflowError),
    RuntimeError,  # an encrypted member; NotImplementedError for a method of compression
)
NPZ_ERRORS: Final[Errors] = (*ZIP_ERRORS, KeyError, TypeError, SyntaxError, tokenize.TokenError)
# An unknown encoding is a LookupError, one of several bytes a ValueError.
XML_ERRORS: Final[Errors] = (ParseError, LookupError, ValueError)
PROTOBUF_ERRORS: Final[Errors] = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error),
)
# Of computing with the values of a record, one of which is missing or of another type.
VALUE_ERRORS: Final[Errors] = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)
# Of libraries that raise whatever the code below them raises: unpickling, the tokenizers of
# transformers, the builders of TensorFlow Datasets.
ANY_ERRORS: Final[Errors] = (Exception,)


def arrow_library_errors() -> Errors:
    """Returns what pyarrow raises, which is imported only where Arrow or Parquet is read."""
    import pyarrow

    return (pyarrow.ArrowException, ValueError, LookupError, TypeError, OverflowError)


def safetensors_errors() -> Errors:
    """Returns what safetensors raises, likewise: an unknown dtype is a KeyError."""
    import safetensors

    return (safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError, OverflowError)


def one_line(error: BaseException, most: int = 200) -> str:
    """Returns an error's message on one line, its name if it has none."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text[:most] or type(error).__name__


@contextmanager
def reader_errors(where: object, errors: Errors, what: str, remedy: str) -> Iterator[None]:
    """Turns a reader's errors into a UserError: "`where`: `what` (reason); `remedy`"."""
    try:
        yield
    except UserError:
        raise
    except errors as error:
        raise UserError(f"{where}: {what} ({one_line(error)}); {remedy}") from error
