"""Line ends in the files and in the values of every reader: CR LF, CR or LF.

CR CR LF, which a CR LF becomes that is written as text on Windows, is one end. Other characters
that move to a new line or page (VT, FF, NEL, U+2028, U+2029) are white space inside a line, as in
the readers of BERT and of SentencePiece: they occur in texts that were copied from elsewhere, in
the middle of sentences.
"""

import re
from typing import Final

_END: Final = re.compile(r"(?<!\r)\r+\n|\r")  # tried where a run of CR begins, so in linear time


def unify_line_ends(text: str) -> str:
    """Returns a text whose lines end with LF."""
    return _END.sub("\n", text) if "\r" in text else text


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text without their ends; at least one, and none after the last end."""
    return unify_line_ends(text).removesuffix("\n").split("\n")
