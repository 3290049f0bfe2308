"""Reads the tokenizer in a folder of transformers, in any of the forms in which they are saved."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bert_jax.convert.added_tokens import with_added_tokens
from bert_jax.convert.folders.tokenizer_keys import TOKENIZER_KEYS
from bert_jax.convert.model_files import Sums, check_one, checked_file, read_json
from bert_jax.convert.tokenizer_files import lowercases
from bert_jax.convert.tokenizer_settings import (
    AS_STORED,
    CONFIG,
    SWITCHES,
    WORDPIECE,
    say_defaults,
    with_settings,
    with_types,
)
from bert_jax.data_pipeline.folders.check import check_keys
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.tokenizer import fast_bpe
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import from_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.runtime.log import logger
from bert_jax.storage.reader_errors import ANY_ERRORS, reader_errors
from bert_jax.storage.regular_file import TOKENIZER

_SENTENCEPIECE = "sentencepiece.bpe.model"  # XLM-R and CamemBERT renumber its ids
_CODES = "bpe.codes"
# Its tokenizer.json says that it splits text as BERT's does, because none can describe jieba.
_JIEBA = "RoFormerTokenizer"


def read_tokenizer(folder: Path, sums: Sums, *, has_types: bool = False) -> Tokenizer:
    """Reads tokenizer.json, or else one of the forms of older models, and the tokens added to it.

    has_types: of a model that has token types.

    Raises:
        UserError: there is none, it is damaged or differs from SHA256SUMS, it needs code of its own
            or a class that splits words in another way, or transformers is needed and not installed
            or cannot convert it.
    """
    values = _settings(folder, sums)
    check_keys(_without_the_usual(values), TOKENIZER_KEYS, folder / CONFIG)
    for name in ("add_prefix_space", "split_special_tokens", *SWITCHES):
        if not isinstance(value := values.get(name), bool | None):
            raise UserError(f"{folder / CONFIG}: {name}={shown(value)} should be true or false")
    kind = _class(folder, values, sums)
    if kind == _JIEBA:
        raise UserError(
            f"{folder}: {_JIEBA} splits text with jieba, which bert-jax does not; give a RoFormer "
            "with another tokenizer, named as tokenizer_class in tokenizer_config.json"
        )
    if (folder / "tokenizer.json").exists():
        with checked_file(folder, "tokenizer.json", sums):
            read = Tokenizer.load(folder / "tokenizer.json")
        spec = json.loads(read.json)
        tokenizer = with_settings(read, spec, values, kind, folder)
        say_defaults(spec, values, kind, folder)
    else:
        tokenizer = _read_older(folder, values, kind, sums)
    found = with_added_tokens(tokenizer, folder, values, sums)
    found = with_types(found, values, kind) if has_types else found
    split = bool(values.get("split_special_tokens"))
    return found.for_task(in_words=False, split_special_tokens=split)


def check_frame(folder: Path, tokenizer: Tokenizer, sums: Sums) -> None:
    """Raises UserError if `AutoTokenizer` adds other tokens to a text than [CLS] and [SEP], as it
    does with a tokenizer.json without a post-processor; logs it if it adds others to a pair alone.

    sums: of an exported folder; older exports lacked the post-processor, and ours reads them.
    """
    if not (unlike := tokenizer.frame.unlike) or sums is not None:
        return
    values = _settings(folder, sums)
    adds = values.get("add_bos_token") and values.get("add_eos_token")  # by transformers itself
    if adds or _class(folder, values, sums) not in AS_STORED:
        return  # other classes make a post-processor of their own
    cls, sep = map(tokenizer.token, (tokenizer.special.cls, tokenizer.special.sep))
    file = folder / "tokenizer.json"
    if unlike == "text":
        raise UserError(
            f"{file}: its post_processor does not read a text as {cls} text {sep}, as the models "
            "here do; set one that does and save the tokenizer again"
        )
    between = " ".join(map(tokenizer.token, tokenizer.frame.between))
    logger.warning(
        "%s: its post_processor joins pairs in another way than %s text %s text %s, as bert-jax "
        "reads them; use single texts, or set one that does",
        file, cls, between, sep,
    )  # fmt: skip


def _without_the_usual(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings without those that add <bos> and <eos> to a text, if they are [CLS] and
    [SEP], as in mmBERT."""
    usual = {
        f"add_{name}_token"
        for name, role in (("bos", "cls"), ("eos", "sep"))
        if values.get(f"{name}_token") is not None
        and values.get(f"{name}_token") == values.get(f"{role}_token")
    }
    return {name: value for name, value in values.items() if name not in usual}


def model_max_length(folder: Path, sums: Sums) -> Any:
    """Returns the tokens to which the tokenizer cuts a text, None if it does not say it."""
    values = _settings(folder, sums)
    return values.get("model_max_length", values.get("max_len"))


def _settings(folder: Path, sums: Sums) -> dict[str, Any]:
    file = folder / CONFIG
    return read_json(file, sums) if file.exists() else {}


def _read_older(folder: Path, values: Mapping[str, Any], kind: Any, sums: Sums) -> Tokenizer:
    """Reads one of the forms that are older than tokenizer.json; UserError as `read_tokenizer`."""
    if (folder / _SENTENCEPIECE).exists():
        with checked_file(folder, _SENTENCEPIECE, sums):
            return _read_with_transformers(folder, _SENTENCEPIECE)
    if (folder / _CODES).exists():
        return _read_fast_bpe(folder, kind, sums)
    if (folder / "vocab.txt").exists():
        with checked_file(folder, "vocab.txt", sums):
            return _read_wordpiece(folder / "vocab.txt", values, kind)
    if (folder / "vocab.json").exists():
        return _read_bpe(folder, bool(values.get("add_prefix_space")))
    check_one(folder)
    raise UserError(
        f"{folder}: neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt; copy the "
        "tokenizer there"
    )


def _class(folder: Path, values: Mapping[str, Any], sums: Sums) -> Any:
    """Returns the class that reads the tokenizer in transformers, without "Fast", or what is given
    instead of one; None if no file names it.

    Args:
        values: of tokenizer_config.json; config.json may name the class, too.
    """
    model = folder / "config.json"
    others = read_json(model, sums) if model.exists() else {}
    kind = values.get("tokenizer_class") or others.get("tokenizer_class")
    if kind is None and others.get("model_type") == "roformer":
        return None if (folder / "tokenizer.json").exists() else _JIEBA
    if kind is None and others.get("model_type") == "modernbert":
        return AS_STORED[0]
    return kind.removesuffix("Fast") if isinstance(kind, str) else kind


def _read_wordpiece(file: Path, values: Mapping[str, Any], kind: Any) -> Tokenizer:
    """Reads a vocab.txt with the settings of a tokenizer_config.json."""
    if not (kind is None or kind in WORDPIECE):
        raise UserError(
            f"{file}: tokenizer_class={shown(kind)} does not split text as BERT's does; save the "
            "tokenizer as tokenizer.json"
        )
    tokenizer = Tokenizer.load(file, lowercase=values.get("do_lower_case"))
    if values.get("do_lower_case") is None:
        say_casing(file, tokenizer)
    return with_settings(tokenizer, json.loads(tokenizer.json), values, kind, file.parent)


def say_casing(file: Path, tokenizer: Tokenizer) -> None:
    """Logs whether text is lower-cased, where no file says it."""
    how = (
        "text is lower-cased, since no entry has a capital letter"
        if lowercases(tokenizer)
        else "text keeps its capital letters, since entries have some"
    )
    logger.info("%s: nothing beside it says do_lower_case: %s", file, how)


def _read_fast_bpe(folder: Path, kind: Any, sums: Sums) -> Tokenizer:
    """Reads the vocab.txt and the bpe.codes of a PhoBERT; other classes change the text before."""
    if kind != fast_bpe.CLASS:
        raise UserError(
            f"{folder / _CODES}: read as by {fast_bpe.CLASS}, but tokenizer_class={shown(kind)}; "
            "save the tokenizer as tokenizer.json"
        )
    with ExitStack() as checked:
        for name in (_CODES, "vocab.txt"):
            if (folder / name).exists():
                checked.enter_context(checked_file(folder, name, sums))
        data = fast_bpe.from_files(folder / "vocab.txt", folder / _CODES)
    return Tokenizer(data, name=str(folder / _CODES))


def _read_bpe(folder: Path, prefix: bool) -> Tokenizer:
    """Reads a vocab.json and a merges.txt: RoBERTa's BPE of bytes, or one of characters."""
    file = folder / "vocab.json"
    data = from_files(file, folder / "merges.txt", add_prefix_space=prefix)
    entries = read_json(file, limit=TOKENIZER)
    if any(entry.endswith(fast_bpe.WORD_END) for entry in entries):
        return _read_with_transformers(folder, file.name)
    return Tokenizer(data, name=str(file))


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
            f"{file}: needs transformers, which is not installed; pip install 'bert-jax[torch]', "
            "or save the tokenizer as tokenizer.json"
        ) from None
    with reader_errors(file, ANY_ERRORS, "transformers cannot read it", "download it again"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    kind = type(tokenizer).__name__
    if name not in tokenizer.vocab_files_names.values():
        raise UserError(
            f"{file}: {kind}, the tokenizer class that this folder names, does not read it; save "
            "the tokenizer as tokenizer.json"
        )
    if not tokenizer.is_fast:
        raise UserError(
            f"{file}: transformers cannot convert {kind} to tokenizer.json; use a model with a "
            "fast tokenizer"
        )
    return Tokenizer(tokenizer.backend_tokenizer.to_str(pretty=True).encode(), name=str(file))
