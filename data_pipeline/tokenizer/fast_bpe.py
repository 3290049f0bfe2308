"""BPE of characters by fastBPE, as PhoBERT's, from its two files: vocab.txt and bpe.codes.

As `PhobertTokenizer` of transformers: words are what is between white space. "@@" ends the entry of
a piece that its word continues; in tokenizer.json, "</w>" ends the last piece of a word instead, as
in bpe.codes.
"""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.data_pipeline.errors import UserError, count
from bert_jax.data_pipeline.storage.remote import storage_errors
from bert_jax.data_pipeline.tokenizer.json_file import ROBERTA_TOKENS, library_errors

WORD_END = "</w>"
_CONTINUED = "@@"
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3; <mask> is the last


def from_files(vocabulary: Path, codes: Path) -> bytes:
    """Returns the tokenizer.json of a vocab.txt (a line: entry, count) and a bpe.codes (a line: two
    pieces, count).

    Raises:
        UserError: a file is missing or has another format, or the merges make a piece that has no
            entry: PhoBERT's own classes give it the id of <unk>, which a tokenizer.json cannot.
    """
    entries = [token for (token,) in _fields(vocabulary, 1)]
    merges = [(first, second) for first, second in _fields(codes, 2)]
    names = [*_FIRST, *map(_name, entries), ROBERTA_TOKENS[-1]]
    vocab = {name: i for i, name in enumerate(names)}
    if len(vocab) != len(names):
        raise UserError(f"{vocabulary}: has an entry twice; download it again")
    pieces = dict.fromkeys(piece for a, b in merges for piece in (a, b, a + b))
    if missing := [piece for piece in pieces if piece not in vocab]:
        more = f" and {count(len(missing) - 1, 'other')}" if len(missing) > 1 else ""
        raise UserError(
            f"{codes}: makes {missing[0]!r}{more}, for which {vocabulary.name} has no entry; a "
            "tokenizer.json cannot make them <unk>, so such a tokenizer is not converted"
        )
    with library_errors(f"{codes}, {vocabulary.name}: no BPE", "download them again"):
        model = models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix=WORD_END)
    encoder = tokenizers.Tokenizer(model)
    encoder.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoder.decoder = decoders.BPEDecoder(suffix=WORD_END)
    encoder.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    encoder.add_special_tokens(list(ROBERTA_TOKENS))
    return encoder.to_str(pretty=True).encode()


def _name(entry: str) -> str:
    return entry.removesuffix(_CONTINUED) if entry.endswith(_CONTINUED) else entry + WORD_END


def _fields(file: Path, number: int) -> list[list[str]]:
    """Returns the fields of every line before its count; UserError for another number of them."""
    with storage_errors(file, "cannot be read", "; PhoBERT's tokenizer needs both files"):
        data = file.read_bytes()
    try:
        lines = data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 at byte {error.start}; download it again") from None
    fields = [line.split() for line in lines]
    for i, parts in enumerate(fields, 1):
        if len(parts) != number + 1 or not parts[-1].isdecimal():
            wanted = "two pieces" if number > 1 else "an entry"
            raise UserError(f"{file}: line {i} is not {wanted} and a count; download it again")
    return [parts[:-1] for parts in fields]
