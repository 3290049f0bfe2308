"""Settings that tokenizer_config.json and tokenizer.json both have, and which of the two holds.

The classes of transformers differ, and its releases. Where a setting is known to hold in both
releases, it is applied; where they disagree, the two files must agree.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bert_jax.convert.tokenizer_files import ends_of, is_of_bert, json_bytes, lowercases
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.tokenizer.frame import post_processor
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.runtime.log import logger

CONFIG: Final = "tokenizer_config.json"
_PREFIX: Final = "add_prefix_space"
# The classes that read a vocab.txt as BERT does. Others split words before WordPiece, such as those
# of Japanese and Chinese models.
WORDPIECE = tuple(
    f"{name}Tokenizer"
    for name in ("Bert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert")
)
# The classes that apply the settings of a tokenizer_config.json to what a tokenizer.json says, in
# transformers 4 and 5. `AS_STORED` do not, but for add_prefix_space in 4; of others releases
# differ, or it is not known.
_NORMALIZING = (*WORDPIECE, "FunnelTokenizer", "MPNetTokenizer", "SplinterTokenizer")
_PREFIXING = tuple(
    f"{name}Tokenizer"
    for name in ("Roberta", "Bart", "Deberta", "GPT2", "LED", "Longformer", "Luke", "Mvp")
)
AS_STORED = ("PreTrainedTokenizer", "TokenizersBackend")
# The classes that give the second text of a pair no token type of its own, in 4 and in 5. There are
# more in 5, which the models were not trained with.
_UNTYPED = tuple(
    f"{name}Tokenizer"
    for name in (
        *("DistilBert", "Roberta", "Bart", "GPT2", "LED", "Longformer", "Mvp", "MPNet"),
        *("XLMRoberta", "Camembert", "Barthez", "BigBird"),
    )
)
# The settings of these classes, with the names of `BertNormalizer`; all are null, true or false.
SWITCHES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def with_settings(
    tokenizer: Tokenizer, spec: Any, values: Mapping[str, Any], kind: Any, folder: Path
) -> Tokenizer:
    """Returns a tokenizer with the settings of a tokenizer_config.json, which hold before those of
    a tokenizer.json where the class applies them; UserError if whether it does is not known.

    spec: the values of tokenizer.json, which are changed.
    """
    for name, stored in _of_one_release(tokenizer, spec, kind):
        if values.get(name) not in (None, stored):
            raise UserError(
                f"{folder / CONFIG}: {name}={shown(values[name])}, but tokenizer.json does as with "
                f"{shown(stored)}; which of them {shown(kind)} takes differs between transformers "
                "4 and 5; make them equal"
            )
    if kind in AS_STORED:
        return tokenizer
    changed = False
    for classes, part, name, own in _settings_in(spec):
        value, stored = values.get(name), part.get(own)
        if value is None or value == stored:
            continue
        if not (kind is None or kind in classes):
            raise UserError(
                f"{folder / CONFIG}: {name}={shown(value)}, but tokenizer.json has "
                f"{own}={shown(stored)}, and bert-jax does not know which of them {shown(kind)} "
                "takes; make them equal"
            )
        part[own], changed = value, True
    if not changed:
        return tokenizer
    processor = spec.get("post_processor") or {}
    if _PREFIX in processor:
        processor[_PREFIX] = spec["pre_tokenizer"].get(_PREFIX)
    return Tokenizer(json_bytes(spec), name="tokenizer.json")


def _of_one_release(tokenizer: Tokenizer, spec: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    """Yields the settings that only one release of transformers applies to such a tokenizer.json,
    each with what it does as stored."""
    splitter = spec.get("pre_tokenizer") or {}
    parts = splitter.get("pretokenizers", ())  # of a sequence, in which 5 sets it
    if kind == "PreTrainedTokenizer":  # of which 4 sets it
        parts = [splitter]
    if kind in (None, "PreTrainedTokenizer", *_PREFIXING):
        yield from ((_PREFIX, part.get(_PREFIX)) for part in parts if _is(part, "ByteLevel"))
    if kind in _NORMALIZING and not _is(spec.get("normalizer"), "BertNormalizer"):
        yield "do_lower_case", lowercases(tokenizer)  # 5 makes a normalizer of its own


def _is(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind


def _settings_in(spec: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str, str]]:
    """Yields the settings that a tokenizer.json has: the classes that apply them, its part with
    one, and the names in a tokenizer_config.json and there."""
    parts = (spec.get(name) for name in ("normalizer", "pre_tokenizer"))
    normalizer, splitter = (part if isinstance(part, dict) else {} for part in parts)
    if _is(normalizer, "BertNormalizer"):
        for name, own in SWITCHES.items():
            yield _NORMALIZING, normalizer, name, own
    if _is(splitter, "ByteLevel"):
        yield _PREFIXING, splitter, _PREFIX, _PREFIX


def say_defaults(spec: Any, values: Mapping[str, Any], kind: Any, folder: Path) -> None:
    """Logs where a tokenizer.json differs from what the classes do without a setting."""
    if (kind == "BertTokenizer" and not is_of_bert(spec)) or (
        kind == "RobertaTokenizer" and spec.get("normalizer")
    ):
        logger.info(
            "%s: text is read as it says; transformers 5 makes %s from its entries, with the "
            "normalizer and the pre_tokenizer of that class",
            folder / "tokenizer.json", kind,
        )  # fmt: skip
    for classes, part, name, own in _settings_in(spec):
        of_4 = kind == "PreTrainedTokenizer" and name == _PREFIX
        stored = part.get(own)
        default = part.get("lowercase") if name == "strip_accents" else name in SWITCHES
        is_usual = stored == default or (name == "strip_accents" and stored is None)
        applies = of_4 or kind is None or kind in classes
        if values.get(name) is None and applies and not is_usual:
            logger.info(
                "%s: nothing beside it says %s: %s, as it says; transformers%s takes %s",
                folder / "tokenizer.json", name, shown(stored), " 4" * of_4, shown(default),
            )  # fmt: skip


def with_types(tokenizer: Tokenizer, values: Mapping[str, Any], kind: Any) -> Tokenizer:
    """Returns the tokenizer of a model with token types: the second text of a pair has type 0 if
    transformers gives the model none."""
    names, frame = values.get("model_input_names"), tokenizer.frame
    is_typed = "token_type_ids" in names if isinstance(names, list) else kind not in _UNTYPED
    if is_typed or not frame.second_type:
        return tokenizer
    spec = json.loads(tokenizer.json)
    spec["post_processor"] = post_processor(frame._replace(second_type=0), *ends_of(tokenizer))
    return Tokenizer(json_bytes(spec), name="tokenizer.json")
