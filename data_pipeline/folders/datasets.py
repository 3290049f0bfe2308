"""The files and keys of prepared datasets: those that `datasets` of Hugging Face saves to disk, and
those that TensorFlow Datasets prepares (4.9)."""

from typing import Final

from bert_jax.data_pipeline.folders.table import Entry, no_effect, read, refused

_FORMAT = "which columns a program in Python sees, and as what"
_RECORDS = "where the dataset comes from"

DATASET_FILES: Final[tuple[Entry, ...]] = (
    read("dataset_dict.json", "the names of the splits, each a folder"),
    read("state.json", "the files of a split, see its keys"),
    read("*.arrow", "the rows"),
    no_effect("dataset_info.json", "types of columns and counts; each file has its own types"),
    no_effect("dataset_infos.json", _RECORDS),
    no_effect("cache-* tmp* *.lock", "left by a program that computed with the dataset"),
)
STATE_KEYS: Final[tuple[Entry, ...]] = (
    read("_data_files", "the files of a split, in their order"),
    refused("_indices_data_files _indices_files", "rows that are chosen or in another order than "
            "in the files, by an index: apply it with `flatten_indices` and save the dataset again",
            None, []),
    no_effect("_format_columns _format_kwargs _format_type _output_all_columns", _FORMAT),
    no_effect("_fingerprint _indexes _inplace_history _split _info _data", _RECORDS),
)  # fmt: skip
DICT_KEYS: Final[tuple[Entry, ...]] = (read("splits", "the names of the splits"),)

PREPARED_FILES: Final[tuple[Entry, ...]] = (
    read("dataset_info.json", "splits and file format, read by tensorflow-datasets"),
    read("features.json *.labels.txt", "the types of the features, and names of labels"),
    read("*.array_record*", "the records"),
    no_effect("*.tfrecord* *.riegeli* *.parquet*", "records in another format, which is refused "
              "where dataset_info.json names it: prepare with --file_format=array_record"),
    no_effect("metadata.json citation.txt description.txt LICENSE*", _RECORDS),
    no_effect("*.tokens.txt *.subwords *.vocab", "of encoded text, read by tensorflow-datasets"),
)  # fmt: skip
