"""The files of sentence-transformers that describe the parts of an encoder, and their keys."""

from typing import Final

from bert_jax.convert.folders.file_names import WEIGHTS
from bert_jax.data_pipeline.folders.table import Entry, no_effect, read, refused

_SENTENCE = "sentence_embedding"
# Keeps transformers from making a pooler, of which a folder without one has no weights.
NO_POOLER: Final = {"add_pooling_layer": False}
_TEXT = no_effect("README* LICENSE* *.md *.txt .* .*/", "text for readers; of Git and of the hub")

PART_FILES: Final[tuple[Entry, ...]] = (  # of a pool, a normalization and a dropout
    read("config.json", "its settings, see its keys"),
    refused("*.safetensors *.bin *.pt *.pth *.npy *.npz", "weights, which a part of this class "
            "does not have"),
    _TEXT,
)  # fmt: skip
DENSE_FILES: Final[tuple[Entry, ...]] = (
    read("config.json", "its settings, see its keys"),
    *WEIGHTS,
    refused("*.safetensors *.bin *.pt *.pth *.npy *.npz", "weights that a layer does not have"),
    _TEXT,
)

MODULES_KEYS: Final[tuple[Entry, ...]] = (
    read("path type", "the folder of a part, and its class"),
    no_effect("idx name kwargs", "number and name of a part, and arguments of its calls"),
)
POOLING_KEYS: Final[tuple[Entry, ...]] = (
    read("word_embedding_dimension embedding_dimension", "must be hidden_size"),
    read("pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_tokens "
         "pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens "
         "pooling_mode_lasttoken", "the pools, joined in this order"),
    read("pooling_mode", "one pool or several, joined in their order"),
    refused("pooling_mode_*", "a pool that bert-jax does not compute", False, None),
    read("include_prompt", "whether the tokens of the prompt are pooled"),
)  # fmt: skip
DENSE_KEYS: Final[tuple[Entry, ...]] = (
    read("in_features out_features bias", "the layer's size"),
    read("activation_function", "Identity, Tanh, ReLU, GELU, Sigmoid or SiLU of PyTorch"),
    read("use_residual", "whether its input is added"),
    refused("module_input_name module_output_name", "a layer on something other than the vector "
            "of a text", _SENTENCE, None),
)  # fmt: skip
NORMALIZE_KEYS: Final[tuple[Entry, ...]] = (
    refused(
        "module_input_name module_output_name",
        "a layer on something other than the vector of a text",
        _SENTENCE,
        None,
    ),
)
DROPOUT_KEYS: Final[tuple[Entry, ...]] = (read("dropout", "kept as it is; a vector has none"),)

ENCODER_KEYS: Final[tuple[Entry, ...]] = (
    read("max_seq_length", "tokens of the longest text"),
    read("do_lower_case", "text is lower-cased before the tokenizer"),
    refused("transformer_task", "vectors of something other than tokens", "feature-extraction",
            None),
    refused("module_output_name", "vectors of something other than tokens", "token_embeddings",
            None),
    refused("modality_config", "something other than text, or another output of the model", None,
            {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}),
    refused("query_length document_length query_expansion processing_kwargs",
            "questions and documents are read in different ways", None, {}),
    refused("model_args model_kwargs", "arguments of transformers", None, {}, NO_POOLER),
    refused("config_args tokenizer_args config_kwargs processor_kwargs tokenizer_name_or_path",
            "arguments of transformers", None, {}),
    no_effect("unpad_inputs backend cache_dir", "how PyTorch computes the same"),
)  # fmt: skip
SENTENCE_TRANSFORMERS_KEYS: Final[tuple[Entry, ...]] = (
    read("prompts default_prompt_name", "text that is put before a text: that of the default "
         "name, or of another (`prompt_name`, `--prompt`); before queries of `search` that named "
         "query"),
    read("truncate_dim", "the first numbers of a vector are kept"),
    read("similarity_fn_name", "how `search` compares vectors; a vector does not depend on it"),
    refused("model_type", "another kind of model than vectors of texts", "SentenceTransformer",
            None),
    no_effect("__version__ requirements", "releases that wrote it"),
)  # fmt: skip
