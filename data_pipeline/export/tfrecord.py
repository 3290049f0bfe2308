"""TFRecord files of tf.train.Example with the features of google-research/bert
(`create_pretraining_data.py`, `write_instance_to_example_files`), written without TensorFlow.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from tensorflow_datasets.proto import tf_example_pb2

from bert_jax.data_pipeline.assemble import Batch
from bert_jax.storage.tfrecord import framed

SUFFIX: Final = ".tfrecord"
NEEDS_PAIRS: Final = True  # its parser requires `next_sentence_labels`
HOLDS_REPEATS: Final = True


def features(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the features of all rows: integers [B, S], [B, P] or [B, 1], weights float32 [B, P].
    An empty prediction slot has position, id and weight 0, as in the original."""
    return {
        "input_ids": batch["input_ids"],
        "input_mask": (batch["example_ids"] > 0).astype(np.int32),
        "segment_ids": batch["token_type_ids"],
        "masked_lm_positions": batch["masked_positions"],
        "masked_lm_ids": batch["masked_labels"],
        "masked_lm_weights": batch["masked_weights"],
        "next_sentence_labels": batch["pair_labels"][:, :1],
    }


def encode(batches: Iterable[Batch], pairing: str) -> bytes:
    """Returns a file with all rows of these batches."""
    return b"".join(framed(data) for batch in batches for data in _examples(features(batch)))


def _examples(arrays: dict[str, np.ndarray]) -> Iterable[bytes]:
    lists = {name: array.tolist() for name, array in arrays.items()}
    for row in range(len(arrays["input_ids"])):
        example = tf_example_pb2.Example()
        for name, values in lists.items():
            feature = example.features.feature[name]
            kind = feature.float_list if name == "masked_lm_weights" else feature.int64_list
            kind.value.extend(values[row])
        yield example.SerializeToString(deterministic=True)
