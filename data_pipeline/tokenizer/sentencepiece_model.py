"""SentencePiece: trained with its own library, encoded by `tokenizers`.

A model is trained or imported as a `.model` file (see sentencepiece_proto.py) and converted to a
tokenizer.json, which encodes the store and is exported for `transformers`. The conversion follows
transformers' `convert_slow_tokenizer.SpmConverter`; in addition, text that spells a control piece
("[MASK]", "<0x41>") does not become that piece, as in the original.

The ids equal the original's with two exceptions. If two segmentations of a word have the same score
("p pp", "pp p"), the unigram model takes the first in double precision, the original the one that
rounding in single precision favors (frequency: docs/data_reference.md). And `tokenizers` applies
character replacements per grapheme: a replaced letter followed by a combining mark with which it
does not form a known character loses the mark.
"""

import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from bert_jax.data_pipeline.tokenizer.json_file import (
    SPECIAL_TOKENS,
    library_errors,
    tokenizer_json,
)
from bert_jax.data_pipeline.tokenizer.sentencepiece_proto import (
    Kind,
    Piece,
    SentencePieceModel,
    parse,
)
from bert_jax.data_pipeline.tokenizer.specials_in_text import splitting
from bert_jax.data_pipeline.tokenizer.words import LAST_SPACES, SPACE, SPACES
from bert_jax.errors import UserError

_ALIASES = (("[PAD]", "<pad>"), ("[UNK]", "<unk>"), ("[CLS]", "<s>"), ("[SEP]", "</s>"),
            ("[MASK]", "<mask>"))  # fmt: skip
# The fraction of the text's characters that get a piece, as for ALBERT's vocabulary.
_COVERAGE = 0.99995
# The trainer silently skips longer lines, and its BPE does not support words of 65,536 characters.
_MAX_LINE = 4000  # characters
_NO_TEXT = "no text to train a vocabulary on; check the sources"


def train_model(
    texts: Iterable[str], vocab_size: int, algorithm: Literal["unigram", "bpe"], *, lowercase: bool
) -> bytes:
    """Trains a `.model` of exactly `vocab_size` pieces, with the special tokens as ids 0 to 4;
    arguments and errors as `Tokenizer.train`.

    The same texts give the same pieces and scores in every process, on any number of cores. Uses
    about 20 bytes of memory per character for unigram, 7 for BPE. `lowercase` folds case (the
    normalizer nmt_nfkc_cf; accents stay), else nmt_nfkc.
    """
    lines = _lines(texts)
    first = next(lines, None)
    if first is None:
        raise UserError(_NO_TEXT)
    out, failed = io.BytesIO(), list[UserError]()
    pad, unk, cls, sep, mask = SPECIAL_TOKENS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_watched(chain([first], lines), failed),
            model_writer=out,
            model_type=algorithm,
            vocab_size=vocab_size,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            character_coverage=_COVERAGE,
            pad_id=0, pad_piece=pad, unk_id=1, unk_piece=unk,
            bos_id=2, bos_piece=cls, eos_id=3, eos_piece=sep, control_symbols=[mask],
            max_sentence_length=4 * _MAX_LINE,  # in bytes
            num_threads=16,  # fixed on all machines, since sums of floats depend on it
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        if failed:
            raise failed[0] from None
        raise UserError(_reason(str(error), vocab_size)) from None
    return out.getvalue()


def _watched(lines: Iterator[str], failed: list[UserError]) -> Iterator[str]:
    """Yields the lines; notes an error of their source: the trainer keeps only its text."""
    try:
        yield from lines
    except UserError as error:
        failed.append(error)
        raise


def _reason(message: str, vocab_size: int) -> str:
    """Returns a one-line reason for an exception of the trainer."""
    if most := re.search(r"set it to a value <= (\d+)", message):
        return (
            f"vocabulary of {vocab_size:,} pieces: this text gives at most {int(most[1]):,}; "
            "request at most that number, or use more text"
        )
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"vocabulary of {vocab_size:,} pieces: this text needs at least {int(least[1]):,} "
            "(the special tokens and every character); request more"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return _NO_TEXT
    return f"the sentencepiece trainer failed: {' '.join(message.split())}"


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for line in text.splitlines():
            if line.strip():
                for start in range(0, len(line), _MAX_LINE):
                    yield line[start : start + _MAX_LINE]


def convert_albert(data: bytes, name: str) -> bytes:
    """Converts the `.model` of ALBERT, whose program changes a text before (preprocess_text in
    tokenization.py): quotes, accents, and case if no piece has a capital letter. A comma after a
    digit stays as the model cuts it, as in transformers. Errors as `convert`."""
    pieces = parse(data, name).pieces
    steps = [
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
        normalizers.StripAccents(),
    ]  # fmt: skip
    if all(piece.text == piece.text.lower() for piece in pieces if piece.kind is Kind.NORMAL):
        steps.append(normalizers.Lowercase())
    # "first" would not be seen after a quote that two characters were replaced by.
    return convert(data, name, steps, "always")


def convert(
    data: bytes,
    name: str,
    before: Iterable[normalizers.Normalizer] = (),
    prefix: Literal["first", "always"] = "first",
) -> bytes:
    """Converts a `.model` to a tokenizer.json.

    Args:
        before: changes of a text before those of the model.
        prefix: where a model with a space before a text has one: there, or after special tokens,
            too.

    Pieces keep their ids. Special tokens (<pad>, <unk>, <s>, </s>, <mask>) are renamed to BERT's
    names; missing ones are added at the end.

    Raises:
        UserError: it cannot be converted; `name` names the file in the message.
    """
    model = parse(data, name)
    pieces = _with_specials(model.pieces)
    with library_errors(f"{name}: cannot be converted", "copy it again"):
        encoder = tokenizers.Tokenizer(_MODELS[model.algorithm](model, pieces))
        if steps := [*before, *_normalizers(model)]:
            encoder.normalizer = normalizers.Sequence(steps)
    # Only models that may merge words have pieces with a space inside.
    split = not any(SPACE in piece.text[1:] for piece in pieces)
    # "first": in "the [MASK]ing" no space is inserted after the mask.
    scheme: Literal["first", "always", "never"] = prefix if model.dummy_prefix else "never"
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=split)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([words, _piece_splitter(pieces)])
    metaspace = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=split)
    encoder.decoder = metaspace
    if model.byte_fallback:
        encoder.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
    if model.algorithm == "bpe":  # the unigram model selects these by their score
        symbols = [p.text for p in pieces if p.kind is Kind.USER_DEFINED]
        encoder.add_tokens([AddedToken(text, normalized=False) for text in symbols])
    return tokenizer_json(encoder)


def _with_specials(pieces: tuple[Piece, ...]) -> list[Piece]:
    """Returns the pieces with BERT's special tokens, the missing ones added at the end."""
    result = list(pieces)
    ids = {piece.text: i for i, piece in enumerate(pieces) if piece.kind is not Kind.NORMAL}
    for name, alias in _ALIASES:
        index = ids.get(name, ids.get(alias, len(result)))
        kind = Kind.UNKNOWN if name == "[UNK]" else Kind.CONTROL
        result[index : index + 1] = [Piece(name, 0.0, kind)]
    return result


def _normalizers(model: SentencePieceModel) -> Iterator[normalizers.Normalizer]:
    if model.charsmap:
        yield normalizers.Precompiled(model.charsmap)
    if model.collapse_spaces:
        yield normalizers.Replace(Regex(SPACES), " ")
        yield normalizers.Replace(Regex(LAST_SPACES), "")
        if not model.dummy_prefix:
            yield normalizers.Replace(Regex(rf"\A[ {SPACE}]+"), "")
    elif model.dummy_prefix:
        # Also before spaces, where Metaspace prepends none.
        yield normalizers.Prepend(" ")


def _piece_splitter(pieces: list[Piece]) -> pre_tokenizers.PreTokenizer:
    """Splits text that spells a control or byte piece after its first character."""
    hidden = [p.text for p in pieces if p.kind in (Kind.UNKNOWN, Kind.CONTROL)]
    has_bytes = any(piece.kind is Kind.BYTE for piece in pieces)
    return splitting(hidden, *["<(?=0x[0-9A-F]{2}>)"] * has_bytes)


def _unigram(model: SentencePieceModel, pieces: list[Piece]) -> models.Model:
    # User-defined symbols win over every other segmentation (unigram_model.cc).
    best = max((p.score for p in pieces if p.kind is Kind.NORMAL), default=0.0)
    scores = [len(p.text) * best - 0.1 if p.kind is Kind.USER_DEFINED else p.score for p in pieces]
    vocab = [(p.text, score) for p, score in zip(pieces, scores, strict=True)]
    unknown = [p.text for p in pieces].index("[UNK]")
    return models.Unigram(vocab, unknown, model.byte_fallback)


def _bpe(model: SentencePieceModel, pieces: list[Piece]) -> models.Model:
    """Merges: every pair of pieces that forms another piece, ordered by the piece's score."""
    vocab = {piece.text: i for i, piece in enumerate(pieces)}
    normal = {p.text: p.score for p in pieces if p.kind is Kind.NORMAL}
    pairs = [
        (-score, len(text) - cut, text[:cut], text[cut:])
        for text, score in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    merges = [(left, right) for _, _, left, right in sorted(pairs)]
    return models.BPE(
        vocab, merges, unk_token="[UNK]", fuse_unk=True, byte_fallback=model.byte_fallback
    )


_MODELS = {"unigram": _unigram, "bpe": _bpe}
