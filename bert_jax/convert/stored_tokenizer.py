"""Reads the tokenizer in a folder of transformers, in any of the forms in which they are saved."""

from pathlib import Path

from bert_jax.convert.files import Sums, check_file, read_json
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import from_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

# Read by transformers: XLM-R and CamemBERT renumber SentencePiece's ids, PhoBERT has a BPE of its
# own.
_FOR_TRANSFORMERS = ("sentencepiece.bpe.model", "bpe.codes")


def read_tokenizer(folder: Path, sums: Sums) -> Tokenizer:
    """Reads tokenizer.json, or else one of the forms of older models.

    Raises:
        UserError: there is none, it is damaged or differs from SHA256SUMS, or transformers is
            needed and not installed or cannot convert it.
    """
    if (folder / "tokenizer.json").exists():
        check_file(folder, "tokenizer.json", sums)
        return Tokenizer.load(folder / "tokenizer.json")
    for name in _FOR_TRANSFORMERS:
        if (folder / name).exists():
            check_file(folder, name, sums)
            return _read_with_transformers(folder, name)
    settings = folder / "tokenizer_config.json"
    values = read_json(settings, sums) if settings.exists() else {}
    for name in ("do_lower_case", "add_prefix_space"):
        if not isinstance(value := values.get(name), bool | None):
            raise UserError(f"{settings}: {name}={shown(value)} should be true or false")
    if (folder / "vocab.txt").exists():
        check_file(folder, "vocab.txt", sums)
        return Tokenizer.load(folder / "vocab.txt", lowercase=values.get("do_lower_case"))
    if (folder / "vocab.json").exists():
        prefix = bool(values.get("add_prefix_space"))
        data = from_files(folder / "vocab.json", folder / "merges.txt", add_prefix_space=prefix)
        return Tokenizer(data, name=str(folder / "vocab.json"))
    raise UserError(
        f"{folder}: neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt; copy the "
        "tokenizer there"
    )


def _read_with_transformers(folder: Path, name: str) -> Tokenizer:
    """Converts a tokenizer by the class of transformers that reads it; runs no code of the model's.

    Raises:
        UserError: transformers is not installed, cannot read the file, or has no fast tokenizer for
            it.
    """
    file = folder / name
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError(
            f"{file}: needs transformers to be read; install bert-jax[torch], or save the "
            "tokenizer as tokenizer.json"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # its classes fail in many ways
        reason = " ".join(str(error).split())[:200]
        remedy = "download it again"
        raise UserError(f"{file}: transformers cannot read it ({reason}); {remedy}") from None
    kind = type(tokenizer).__name__
    if name not in tokenizer.vocab_files_names.values():
        raise UserError(f"{file}: {kind}, the class named beside it, does not read it")
    if not tokenizer.is_fast:
        raise UserError(f"{file}: {kind} of transformers has no form as tokenizer.json")
    return Tokenizer(tokenizer.backend_tokenizer.to_str(pretty=True).encode(), name=str(file))
