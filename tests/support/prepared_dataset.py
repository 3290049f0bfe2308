"""A dataset as TensorFlow Datasets prepares it, written without TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.core.example_serializer import ExampleSerializer

Rows = Sequence[Mapping[str, Any]]


def write(
    folder: Path,
    splits: Mapping[str, Sequence[Rows]],
    *,
    name: str = "wiki",
    configuration: str = "",
    numbers: Sequence[str] = (),
    classes: Mapping[str, Sequence[str]] = MappingProxyType({}),
    floats: Sequence[str] = (),
    file_format: str = "array_record",
) -> None:
    """Writes a version of a dataset.

    Args:
        folder: …/NAME/VERSION.
        splits: the rows of each shard; all have the same keys.
        numbers: features that are integers; others are text.
        classes: features that are the number of a label -> the names of these.
        floats: features that are float32.
    """
    folder.mkdir(parents=True)
    keys = next((row for shards in splits.values() for rows in shards for row in rows), {})
    kinds = {
        **dict.fromkeys(keys, tfds.features.Text()),
        **dict.fromkeys(numbers, tfds.features.Scalar(np.int64)),
        **dict.fromkeys(floats, tfds.features.Scalar(np.float32)),
        **{key: tfds.features.ClassLabel(names=names) for key, names in classes.items()},
    }
    features = tfds.features.FeaturesDict({key: kinds[key] for key in keys})
    serializer = ExampleSerializer(features.get_serialized_info())
    for split, shards in splits.items():
        for place, rows in reversed([*enumerate(shards)]):
            shard = f"{name}-{split}.{file_format}-{place:05}-of-{len(shards):05}"
            writer = ArrayRecordWriter(str(folder / shard), "group_size:1")
            for row in rows:
                writer.write(serializer.serialize_example(features.encode_example(row)))
            writer.close()
    described = {
        "fileFormat": file_format,
        "name": name,
        "configName": configuration,
        "version": "1.0.0",
        "splits": [
            {
                "name": split,
                "shardLengths": [str(len(rows)) for rows in shards],
                "numBytes": "1",
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, shards in splits.items()
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(described))
    (folder / "features.json").write_text(json.dumps(features.to_json()))
    features.save_metadata(folder)  # names of labels
