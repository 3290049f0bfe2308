"""Tokens that a folder of transformers adds to a vocabulary, with their ids, as its classes do.

tokenizer_config.json lists them since transformers 4.34 (`added_tokens_decoder`). Older releases
wrote added_tokens.json and special_tokens_map.json, which newer ones read only without that list.
Tokens in a tokenizer.json are there already.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken

from bert_jax.convert.folders.tokenizer_keys import NAMED_TOKENS, SPECIAL_TOKENS_KEYS
from bert_jax.convert.model_files import Sums, read_json
from bert_jax.data_pipeline.folders.check import check_keys
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.tokenizer.json_file import library_errors
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.storage.json_record import text

ADDED: Final = "added_tokens.json"
SPECIAL: Final = "special_tokens_map.json"
_DECODER: Final = "added_tokens_decoder"
# Lists of special tokens: its name since transformers 5, and the one before.
_FURTHER: Final = ("extra_special_tokens", "additional_special_tokens")
_ID: Final = re.compile(r"\d{1,9}", re.ASCII)
_SETTINGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


def with_added_tokens(
    tokenizer: Tokenizer, folder: Path, values: Mapping[str, Any], sums: Sums
) -> Tokenizer:
    """Returns the tokenizer with all tokens of the folder; the same if it has them.

    Args:
        tokenizer: of the folder's vocabulary or its tokenizer.json.
        values: of its tokenizer_config.json.

    Raises:
        UserError: a file is damaged, a token has another id than the folder says, or the five
            special tokens are others than those that the tokenizer's class adds to a text.
    """
    spec = json.loads(tokenizer.json)
    present = {token["content"]: _token(token, folder) for token in spec["added_tokens"]}
    settings = {**values, **({} if _DECODER in values else _special_tokens(folder, sums))}
    special = [*_special_of(settings, folder)]
    _check_roles(tokenizer, special, folder)
    own = {*map(tokenizer.token, tokenizer.special)}
    by_id = _by_id(folder, settings, own | _known_special(values, settings, folder), sums)
    # Without the list, what a tokenizer.json says of a token holds; a vocabulary says nothing.
    fixed = present if _DECODER not in values and (folder / "tokenizer.json").exists() else {}
    new = {
        token.content: token
        for _, token in sorted(by_id.items())
        if token.content not in fixed and not _same(token, present)
    }
    listed = {token.content for token in by_id.values()}
    for _, value in special:
        content = _content(value)
        known = present if isinstance(value, str) or _DECODER in values else fixed
        if content not in known and content not in listed and content not in new:
            token = _token(value, folder)
            token.special = True
            if not _same(token, present):
                new[content] = token
    encoder = tokenizers.Tokenizer.from_str(tokenizer.json.decode())
    with library_errors(f"{folder}: cannot add its tokens", "save the tokenizer again"):
        for token in new.values():
            (encoder.add_special_tokens if token.special else encoder.add_tokens)([token])
    for i, token in by_id.items():
        if (found := encoder.token_to_id(token.content)) != i:
            raise UserError(
                f"{folder}: {shown(token.content)} has the id {i} among the added tokens, but "
                f"{shown(found)} in the vocabulary; save the tokenizer again"
            )
    if not new:
        return tokenizer
    if tokenizer.has_unknown_pieces:
        raise UserError(
            f"{folder}: cannot add {shown(next(iter(new)))} to a SentencePiece vocabulary; save "
            "the tokenizer as tokenizer.json"
        )
    return Tokenizer(encoder.to_str(pretty=True).encode(), name=str(folder))


def _content(value: Any) -> Any:
    """Returns the content of a token, which is a text or an object with its settings."""
    return value.get("content") if isinstance(value, dict) else value


def _token(value: Any, where: Path) -> AddedToken:
    """Returns a token from its text, which is special, or from an object with its settings."""
    values = {"content": value, "special": True} if isinstance(value, str) else value
    content = _content(values)
    if not text(content) or not content:
        raise UserError(f"{where}: {shown(value)} is not a token; save the tokenizer again")
    settings = {name: values[name] for name in _SETTINGS if name in values}
    if wrong := [name for name, one in settings.items() if not isinstance(one, bool)]:
        raise UserError(
            f"{where}: {shown(content)} has {wrong[0]}={shown(settings[wrong[0]])}, should be "
            "true or false; save the tokenizer again"
        )
    return AddedToken(content, **settings)


def _same(token: AddedToken, present: Mapping[str, AddedToken]) -> bool:
    other = present.get(token.content)
    return other is not None and all(
        getattr(token, name) == getattr(other, name) for name in _SETTINGS
    )


def _special_tokens(folder: Path, sums: Sums) -> dict[str, Any]:
    """Returns special_tokens_map.json, whose values hold before those of tokenizer_config.json."""
    if not (folder / SPECIAL).exists():
        return {}
    values = read_json(folder / SPECIAL, sums)
    check_keys(values, SPECIAL_TOKENS_KEYS, folder / SPECIAL)
    return values


def _special_of(settings: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    """Yields the special tokens as they are given, with their names, in the order in which they are
    added; UserError for what is no token."""
    named = [name for name in NAMED_TOKENS if settings.get(name) is not None]
    others = [
        name
        for name, value in settings.items()
        if name.endswith("_token") and name not in NAMED_TOKENS and isinstance(value, str | dict)
    ]
    further = _further(settings, folder)
    for name, value in [
        *((name, settings[name]) for name in named + others),
        *(further.items() if isinstance(further, dict) else (("", one) for one in further)),
    ]:
        _token(value, folder)
        yield name, value


def _further(settings: Mapping[str, Any], folder: Path) -> list[Any] | dict[str, Any]:
    """Returns the tokens of the first list that is there; UserError for another value."""
    name = next((name for name in _FURTHER if settings.get(name)), None)
    found = settings[name] if name else []
    if not isinstance(found, list | dict):
        raise UserError(
            f"{folder}: {name}={shown(found)} should be a list of tokens; save the tokenizer again"
        )
    return found


def _known_special(
    values: Mapping[str, Any], settings: Mapping[str, Any], folder: Path
) -> set[str]:
    """Returns the texts of the tokens that are special if added_tokens.json has them.

    As in transformers 5, `additional_special_tokens` of special_tokens_map.json are not among them:
    they are found after a text is lower-cased, as by the slow tokenizers that wrote the file.
    """
    further = _further(values, folder) or settings.get(_FURTHER[0]) or []
    listed = further if isinstance(further, list) else []
    named = (settings[name] for name in NAMED_TOKENS if settings.get(name) is not None)
    return {_token(value, folder).content for value in (*named, *listed)}


def _by_id(
    folder: Path, settings: Mapping[str, Any], special: set[str], sums: Sums
) -> dict[int, AddedToken]:
    """Returns the tokens that the folder lists with ids."""
    listed = settings.get(_DECODER)
    where = folder / "tokenizer_config.json"
    if listed is None:
        if not (folder / ADDED).exists():
            return {}
        where = folder / ADDED
        found = {
            content: (i, {"content": content, "special": content in special,
                          "normalized": content not in special})
            for content, i in read_json(where, sums).items()
        }  # fmt: skip
        pairs = list(found.values())
    elif isinstance(listed, dict):
        pairs = [(int(i) if _ID.fullmatch(i) else i, token) for i, token in listed.items()]
    else:
        raise UserError(f"{where}: {_DECODER}={shown(listed)} should be tokens by id")
    if wrong := [i for i, _ in pairs if not isinstance(i, int) or isinstance(i, bool) or i < 0]:
        raise UserError(f"{where}: {shown(wrong[0])} is not the id of a token")
    if len({i for i, _ in pairs}) < len(pairs):
        raise UserError(f"{where}: two tokens have one id; save the tokenizer again")
    return {i: _token(token, where) for i, token in pairs}


def _check_roles(tokenizer: Tokenizer, special: list[tuple[str, Any]], folder: Path) -> None:
    """Raises UserError if [CLS], [SEP], … are other tokens in this folder."""
    named = dict(special)
    for name, i in zip(("pad", "unk", "cls", "sep", "mask"), tokenizer.special, strict=True):
        given, own = named.get(f"{name}_token"), tokenizer.token(i)
        if given is not None and _content(given) != own:
            raise UserError(
                f"{folder}: {name}_token={shown(_content(given))} is not supported; the tokenizer "
                f"has {own} for it"
            )
