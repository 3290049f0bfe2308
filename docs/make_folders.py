"""Writes docs/folders.md from the tables of the files and keys that folders of others have.

python docs/make_folders.py
"""

from collections.abc import Sequence
from pathlib import Path

from bert_jax.convert.folders import file_names, model_keys, sentence_keys, tokenizer_keys
from bert_jax.data_pipeline.folders import datasets
from bert_jax.data_pipeline.folders.table import REFUSED, Entry

PAGE = Path(__file__).parent / "folders.md"
_HEAD = """# Folders of other programs

What a folder has, and what becomes of it, for `bert_jax.load`, `bert-jax convert import`, `embed`,
`config.init` and the sources `arrow` and `tfds`. Where the tables come from: the code that writes
folders was read of transformers 2.11, 4.57 and 5, of sentence-transformers 0.4, 2.2, 3.4 and 6.2
and of google-research/bert (eedf571); of transformers 3.5 and 4.0 only lists of keys. The keys of
`state.json` come from public copies of the code of `datasets` of Hugging Face; the names of the
files of TensorFlow Datasets 4.9 from knowledge of the format, not from its code. The programs obey
these tables; `python docs/make_folders.py` writes the page from them.

- **read**: it has its meaning.
- **no effect**: it changes no number that is computed.
- **refused**: its meaning would be lost, so the folder is refused in one line that names it. Values
  in parentheses change nothing and are accepted.

A key that is in no table is named in the log. A file `*.json` in no table, and a folder with a
`config.json` that nothing names, are refused: they may change what the model is.
"""
_TABLES: Sequence[tuple[str, Sequence[Entry]]] = (
    ("Files of transformers and sentence-transformers", file_names.FILES),
    ("`config.json`", model_keys.CONFIG_KEYS),
    ("`tokenizer_config.json`", tokenizer_keys.TOKENIZER_KEYS),
    ("`special_tokens_map.json`", tokenizer_keys.SPECIAL_TOKENS_KEYS),
    ("`modules.json`", sentence_keys.MODULES_KEYS),
    ("Files of `1_Pooling`, `2_Normalize` and `2_Dropout`", sentence_keys.PART_FILES),
    ("Files of `2_Dense`", sentence_keys.DENSE_FILES),
    ("`1_Pooling/config.json`", sentence_keys.POOLING_KEYS),
    ("`2_Dense/config.json`", sentence_keys.DENSE_KEYS),
    ("`2_Normalize/config.json`", sentence_keys.NORMALIZE_KEYS),
    ("`2_Dropout/config.json`", sentence_keys.DROPOUT_KEYS),
    ("`sentence_bert_config.json`", sentence_keys.ENCODER_KEYS),
    ("`config_sentence_transformers.json`", sentence_keys.SENTENCE_TRANSFORMERS_KEYS),
    ("Files of google-research/bert", file_names.GOOGLE_FILES),
    ("`bert_config.json`", model_keys.GOOGLE_KEYS),
    ("`albert_config.json`", model_keys.ALBERT_KEYS),
    ("A dataset that `datasets` saved to disk", datasets.DATASET_FILES),
    ("`state.json`", datasets.STATE_KEYS),
    ("`dataset_dict.json`", datasets.DICT_KEYS),
    ("A dataset that TensorFlow Datasets prepared", datasets.PREPARED_FILES),
)


def page() -> str:
    """Returns the text of the page."""
    parts = [_HEAD]
    for title, entries in _TABLES:
        rows = "".join(f"{_row(entry)}\n" for entry in entries)
        parts.append(f"## {title}\n\n| name | use | |\n|---|---|---|\n{rows}")
    return "\n".join(parts)


def _row(entry: Entry) -> str:
    names = ", ".join(f"`{name}`" for name in entry.names)
    use = f"**{entry.use}**" if entry.use == REFUSED else entry.use
    accepted = ", ".join(f"`{_shown(value)}`" for value in entry.unless)
    return f"| {names} | {use}{f' ({accepted})' if accepted else ''} | {entry.about} |"


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
