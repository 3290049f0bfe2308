"""Writes the files of PyTorch in a folder of transformers."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_pytorch(
    folder: Path, state: Mapping[str, np.ndarray], *, legacy: bool, shards: int
) -> None:
    """Replaces the weights of a folder by files of PyTorch, with an index if there are several.

    legacy: in the form before PyTorch 1.6, which is no zip.
    """
    import torch

    (folder / "model.safetensors").unlink()
    files = ["pytorch_model.bin"]
    if shards > 1:
        files = [f"pytorch_model-{i + 1:05}-of-{shards:05}.bin" for i in range(shards)]
        where = {name: files[i % shards] for i, name in enumerate(state)}
        index = json.dumps({"metadata": {}, "weight_map": where})
        (folder / "pytorch_model.bin.index.json").write_text(index)
    for i, file in enumerate(files):
        part = {n: torch.from_numpy(np.array(x)) for n, x in list(state.items())[i::shards]}
        torch.save(part, folder / file, _use_new_zipfile_serialization=not legacy)
