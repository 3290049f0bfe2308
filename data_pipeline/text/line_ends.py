"""What ends a line, in the files and in the values of every reader: CR LF, CR or LF.

Other characters that move to a new line or page (VT, FF, NEL, U+2028, U+2029) are white space
inside a line, as in the readers of BERT and of SentencePiece: they occur in texts that were copied
from elsewhere, in the middle of sentences.
"""


def unify_line_ends(text: str) -> str:
    """Returns a text whose lines end with LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text without their ends; at least one, and none after the last end."""
    return unify_line_ends(text).removesuffix("\n").split("\n")
