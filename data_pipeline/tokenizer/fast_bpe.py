"""BPE of characters by fastBPE, as PhoBERT's, from its two files: vocab.txt and bpe.codes.

As `PhobertTokenizer` of transformers: words are what is between white space. "@@" ends the entry of
a piece that its word continues; in tokenizer.json, "</w>" ends the last piece of a word instead, as
in bpe.codes.

vocab.txt lists the pieces of the text that a model was trained on, and merges make others on the
way to them. These stand in tokenizer.json after <mask>, the last entry; where one is left in a
word, it is unknown. transformers has no such rule for a tokenizer.json, so it gets the two files.
"""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.data_pipeline.tokenizer.json_file import ROBERTA_TOKENS, SpecialIds, library_errors
from bert_jax.errors import UserError
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.regular_file import TOKENIZER
from bert_jax.storage.remote import storage_errors

CLASS = "PhobertTokenizer"  # of transformers
WORD_END = "</w>"
_CONTINUED = "@@"
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3; <mask> is the last


def from_files(vocabulary: Path, codes: Path) -> bytes:
    """Returns the tokenizer.json of a vocab.txt (a line: entry, count) and a bpe.codes (a line: two
    pieces, count).

    Raises:
        UserError: a file is missing or has another format.
    """
    entries = [token for (token,) in _fields(vocabulary, 1)]
    merges = [(first, second) for first, second in _fields(codes, 2)]
    names = [*_FIRST, *map(_name, entries), ROBERTA_TOKENS[-1]]
    pieces = dict.fromkeys(piece for a, b in merges for piece in (a, b, a + b))
    vocab = {name: i for i, name in enumerate(dict.fromkeys([*names, *pieces]))}
    if len(set(names)) != len(names):
        raise UserError(f"{vocabulary}: has an entry twice; download it again")
    with library_errors(f"{codes}, {vocabulary.name}: no BPE", "download them again"):
        model = models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix=WORD_END)
    encoder = tokenizers.Tokenizer(model)
    encoder.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoder.decoder = decoders.BPEDecoder(suffix=WORD_END)
    encoder.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    encoder.add_special_tokens(list(ROBERTA_TOKENS))
    return encoder.to_str(pretty=True).encode()


def count_entries(encoder: tokenizers.Tokenizer, special: SpecialIds) -> int:
    """Returns the number of ids that a model knows: those up to <mask> of a tokenizer that
    `from_files` made, which has the special tokens of fairseq's dictionary; all ids of others."""
    model, last = encoder.model, len(_FIRST)
    ours = (
        isinstance(model, models.BPE)
        and model.end_of_word_suffix == WORD_END
        and isinstance(encoder.pre_tokenizer, pre_tokenizers.WhitespaceSplit)
        and [encoder.token_to_id(token) for token in _FIRST] == list(range(last))
        and special.mask > last
        and max(encoder.get_added_tokens_decoder(), default=0) == special.mask
    )
    return special.mask + 1 if ours else encoder.get_vocab_size(with_added_tokens=True)


def to_files(spec: dict[str, Any], entries: int) -> dict[str, bytes]:
    """Returns vocab.txt and bpe.codes of a tokenizer.json by `from_files`; every count, which no
    tokenizer reads, is 1."""
    vocab, merges = spec["model"]["vocab"], spec["model"]["merges"]
    names = sorted(vocab, key=vocab.__getitem__)[len(_FIRST) : entries - 1]
    return {
        "vocab.txt": "".join(f"{_entry(name)} 1\n" for name in names).encode(),
        "bpe.codes": "".join(f"{first} {second} 1\n" for first, second in merges).encode(),
    }


def _name(entry: str) -> str:
    return entry.removesuffix(_CONTINUED) if entry.endswith(_CONTINUED) else entry + WORD_END


def _entry(name: str) -> str:
    return name.removesuffix(WORD_END) if name.endswith(WORD_END) else name + _CONTINUED


def _fields(file: Path, number: int) -> list[list[str]]:
    """Returns the fields of every line before its count; UserError for another number of them."""
    with storage_errors(file, "cannot be read", "; PhoBERT's tokenizer needs both files"):
        data = read_bytes(file, TOKENIZER)
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
