"""sentence-transformers as the reference, in a process of its own, of each release with which tests
compare.

`python sentence_library.py FOLDER` carries out the requests in FOLDER/given.json, with the arrays
of FOLDER/given.npz, and writes what it found there; `ask` starts it.

BERT_JAX_SENTENCE_TRANSFORMERS names the folders with the packages of a release each, separated as
those of PATH, which `make .venv/sentence_transformers .venv/sentence_transformers_old` installs.
"""

import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LIBRARY = "sentence_transformers"
RELEASES = [
    folder
    for folder in os.environ.get("BERT_JAX_SENTENCE_TRANSFORMERS", "").split(os.pathsep)
    if (Path(folder) / LIBRARY).is_dir()
]
WITH_EACH_RELEASE = pytest.mark.parametrize(
    "packages",
    RELEASES
    or [
        pytest.param(
            "",
            marks=pytest.mark.skip(
                reason="BERT_JAX_SENTENCE_TRANSFORMERS names no folder with sentence-transformers"
            ),
        )
    ],
    ids=lambda packages: Path(packages).name or "none",
    scope="module",
)
Arrays = dict[str, np.ndarray]


def release(packages: str) -> int:
    """Returns the first number of the release in a folder."""
    (about,) = importlib.metadata.distributions(name="sentence-transformers", path=[packages])
    return int(about.version.split(".")[0])


def ask(
    packages: str,
    folder: Path,
    requests: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, np.ndarray] | None = None,
) -> list[tuple[Arrays, list[str]]]:
    """Carries out requests with the release in `packages`, whose start takes seconds.

    requests: a name of `COMMANDS` as "do", and its arguments.

    Returns:
        What was found for each, and what the library warned or logged as a warning meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "given.json").write_text(json.dumps(list(requests), default=str))
    np.savez(folder / "given.npz", **(arrays or {}))
    places = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env=os.environ | {"PYTHONPATH": places, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    with np.load(folder / "found.npz") as stored:
        found = dict(stored)
    said: list[list[str]] = json.loads((folder / "said.json").read_text())
    return [(_of(found, number), messages) for number, messages in enumerate(said)]


def _of(found: Arrays, number: int) -> Arrays:
    mine = (name.partition(":") for name in found if name.startswith(f"{number}:"))
    return {name: found[f"{of}:{name}"] for of, _, name in mine}


def encode(
    texts: Sequence[str], folder: str, side: str = "", prompt_name: str | None = None
) -> Arrays:
    """The vectors of a folder; side: `query` or `document`, for its methods since release 5."""
    model = _load(folder)
    method = getattr(model, f"encode_{side}" if side else "encode")
    given = {"prompt_name": prompt_name} if prompt_name else {}
    return {"vectors": method(list(texts), **given)}


def _load(folder: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu")


def save(
    texts: Sequence[str],
    encoder: str,
    parts: Sequence[tuple[str, Mapping[str, Any]]],
    out: str,
    max_seq_length: int | None = None,
    lowercase: bool = False,
    **about: Any,
) -> Arrays:
    """Writes a folder with these modules after an encoder; returns its vectors.

    parts: classes and arguments; the activation of a dense layer is the name of its class.
    about: arguments of SentenceTransformer.
    """
    import torch
    from sentence_transformers import SentenceTransformer, models

    torch.manual_seed(0)
    made = [models.Transformer(encoder, max_seq_length=max_seq_length, do_lower_case=lowercase)]
    for name, arguments in parts:
        given = dict(arguments)
        if "activation_function" in given:
            given["activation_function"] = getattr(torch.nn, given["activation_function"])()
        made.append(getattr(models, name)(**given))
    model = SentenceTransformer(modules=made, device="cpu", **about)
    model.save(out)
    return {"vectors": model.eval().encode(list(texts))}


def loss(name: str, x: str, labels: str = "", widths: Sequence[int] = (), **given: Any) -> Arrays:
    """The value of a loss and its gradient of vectors.

    x, labels: names of arrays, [E, C, D] and [E].
    widths: of MatryoshkaLoss around it.
    given: arguments of its class; `weight` and `bias`: names of those of a classifier.
    """
    import torch
    from sentence_transformers import losses

    x_ExCxD = torch.tensor(ARRAYS[x], requires_grad=True)
    model = _table(x_ExCxD.swapaxes(0, 1).flatten(0, 1))
    parameters = {part: ARRAYS[given.pop(part)] for part in ("weight", "bias") if part in given}
    made = getattr(losses, name)(model, **given)
    if parameters:
        made.classifier.load_state_dict({n: torch.tensor(v) for n, v in parameters.items()})
    whole = losses.MatryoshkaLoss(model, made, list(widths)) if widths else made
    E, C, _ = x_ExCxD.shape
    columns = [{"input_ids": torch.arange(c * E, (c + 1) * E)[:, None]} for c in range(C)]
    for column in columns:
        column["attention_mask"] = torch.ones_like(column["input_ids"])
    value = whole(columns, torch.tensor(ARRAYS[labels]) if labels else None)
    value.backward()
    out = {"loss": value.detach().numpy(), "gradient": x_ExCxD.grad.numpy()}
    if parameters:
        out |= {f"{n} gradient": p.grad.numpy() for n, p in made.classifier.named_parameters()}
    return out


def _table(x_TxD: Any) -> Any:
    """A model whose texts are the numbers of vectors."""
    import torch

    class Table(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, features: dict, **_: Any) -> dict:
            vectors = x_TxD[features["input_ids"][:, 0]]
            out = {"sentence_embedding": vectors, "token_embeddings": vectors[:, None]}
            return {**features, **out}

        def get_embedding_dimension(self) -> int:
            return x_TxD.shape[-1]

        def __getitem__(self, number: int) -> Any:
            return self

    return Table()


def train(
    folder: str,
    batches: Sequence[Sequence[Sequence[str]]],
    rates: Sequence[float],
    adamw: Mapping[str, Any],
    clip_norm: float,
    loss: str,
) -> Arrays:
    """Trains on batches of columns of texts; returns the losses and the parameters, those of dense
    layers by names that begin with their numbers.

    As its trainer does, which needs further packages: its model and loss, and AdamW without decay
    of biases and LayerNorm.
    """
    import torch
    from sentence_transformers import losses, models

    model = _load(folder)
    objective, values = getattr(losses, loss)(model), []
    groups = [
        {
            "params": [
                parameter
                for name, parameter in model.named_parameters()
                if ("bias" in name or "LayerNorm" in name) is not decays
            ],
            "weight_decay": adamw["weight_decay"] * decays,
        }
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, **{**adamw, "lr": rates[0]})
    read = getattr(model, "preprocess", None) or model.tokenize
    model.train()  # there is no dropout
    for columns, rate in zip(batches, rates, strict=True):
        optimizer.zero_grad()
        value = objective([read(list(column)) for column in columns], None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        values.append(value.item())
    tensors = dict(model[0].auto_model.state_dict())
    for number, layer in enumerate(part for part in model if isinstance(part, models.Dense)):
        tensors |= {f"{number}.{name}": value for name, value in layer.state_dict().items()}
    return {"losses": np.array(values), **{name: x.numpy() for name, x in tensors.items()}}


def quantize(x: str, precision: str, ranges: str) -> Arrays:
    """The codes of vectors. x, ranges: names of arrays."""
    from sentence_transformers.util.quantization import quantize_embeddings

    return {"codes": quantize_embeddings(ARRAYS[x], precision, ranges=ARRAYS[ranges])}


COMMANDS = {"encode": encode, "save": save, "loss": loss, "train": train, "quantize": quantize}
ARRAYS: Arrays = {}


class _Messages(logging.Handler):
    """Notes what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # 4.57 says this of its own RoFormerForMaskedLM, whatever is loaded.
        if "has generative capabilities" not in record.getMessage():
            self.said.append(record.getMessage())


def main(folder: Path) -> None:
    import sentence_transformers  # noqa: F401  (what its import warns of is of no folder)
    import transformers

    with np.load(folder / "given.npz") as stored:
        ARRAYS.update(stored)
    messages, found, said = _Messages(), {}, []
    for name in ("", "transformers", LIBRARY):
        logging.getLogger(name).addHandler(messages)
    transformers.logging.disable_progress_bar()
    for number, request in enumerate(json.loads((folder / "given.json").read_text())):
        messages.said = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            warnings.simplefilter("ignore", DeprecationWarning)  # as Python does, of a library
            answer = COMMANDS[request.pop("do")](**request)  # type: ignore[operator]
        found |= {f"{number}:{name}": array for name, array in answer.items()}
        said.append(messages.said + [f"{one.category.__name__}: {one.message}" for one in caught])
    np.savez(folder / "found.npz", **found)
    (folder / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
