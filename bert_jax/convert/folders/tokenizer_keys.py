"""The keys of tokenizer_config.json and special_tokens_map.json."""

from typing import Final

from bert_jax.data_pipeline.folders.table import Entry, no_effect, read, refused

_PATHS = "where the tokenizer comes from"
_PADDING = (
    "how rows are padded: a vector is always that of the text without padding, also where "
    "transformers, with padding on the left, counts it as positions"
)

NAMED_TOKENS: Final = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip

TOKENIZER_KEYS: Final[tuple[Entry, ...]] = (
    read("tokenizer_class", "the class, without Fast at its end"),
    read("do_lower_case strip_accents tokenize_chinese_chars",
         "of BERT's classes, also beside a tokenizer.json; of a class of which that is not known, "
         "they must be as there"),
    read("add_prefix_space",
         "of RoBERTa's and GPT-2's classes, also beside a tokenizer.json; of others, as there"),
    read("cls_token sep_token pad_token unk_token mask_token",
         "must be the tokens of BERT, of RoBERTa or of Gemma"),
    refused("add_bos_token add_eos_token", "other special tokens around a text, unless they are "
            "those of cls_token and sep_token", None, False),
    read("bos_token eos_token additional_special_tokens extra_special_tokens *_token",
         "added to the vocabulary if it lacks them"),
    read("added_tokens_decoder", "added tokens with their ids, and where they match a text"),
    read("model_max_length max_len", "the longest text of a sentence encoder"),
    refused("auto_map", "needs code of its own (auto_map), which bert-jax never runs", None, {},
            []),
    refused("do_basic_tokenize", "text is not split before WordPiece", True, None),
    refused("never_split", "words that are not split", None, []),
    read("split_special_tokens", "whether special tokens in a text are text"),
    refused("truncation_side", "long texts are cut at their start", "right", None),
    refused("wordpieces_prefix", "another mark inside of words", "##", None),
    refused("sp_model_kwargs", "settings of SentencePiece", {}, None),
    refused("word_tokenizer_type", "words are split by another program", "basic", None),
    refused("subword_tokenizer_type", "words are split in another way", "wordpiece", None),
    refused("do_word_tokenize do_subword_tokenize", "text is not split as BERT does", True, None),
    refused("mecab_kwargs sudachi_kwargs jumanpp_kwargs", "words are split by another program",
            None, {}),
    no_effect("name_or_path special_tokens_map_file tokenizer_file vocab_file merges_file "
              "init_inputs is_local local_files_only from_slow slow_tokenizer_class use_fast "
              "backend files_loaded device_map processor_class transformers_version "
              "model_specific_special_tokens full_tokenizer_file", _PATHS),
    read("model_input_names", "whether the second text of a pair has a token type of its own, if "
         "the model has types; without the key, as the class in transformers 4"),
    no_effect("padding_side pad_token_type_id pad_to_multiple_of padding return_tensors",
              _PADDING),
    no_effect("max_length stride truncation truncation_strategy",
              "of the last call before the tokenizer was saved"),
    no_effect("clean_up_tokenization_spaces errors trim_offsets spaces_between_special_tokens "
              "decoder legacy verbose", "of text made from ids"),
    no_effect("keep_accents remove_space unk_id", "of ALBERT's class; its tokenizer.json says it"),
    no_effect("chat_template response_template", "how a conversation is written as text"),
)  # fmt: skip

SPECIAL_TOKENS_KEYS: Final[tuple[Entry, ...]] = (
    read("cls_token sep_token pad_token unk_token mask_token",
         "must be the tokens of BERT, of RoBERTa or of Gemma"),
    read("bos_token eos_token additional_special_tokens extra_special_tokens *_token",
         "added to the vocabulary if it lacks them"),
)  # fmt: skip
