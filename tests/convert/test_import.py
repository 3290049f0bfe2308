"""`convert import`: from google-research/bert, from folders of transformers and from a hub."""

import functools
import importlib.util
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
from exported import random_params
from gcs_emulator import emulated
from hub_server import Hub, commit_of, serve, use_endpoint
from pytorch_files import write_pytorch
from small import model_config
from tensorflow_bundle import write_google_folder

import bert_jax
from bert_jax import cli
from bert_jax.convert import weights
from bert_jax.convert.model_folders import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED

CONFIG = model_config()
ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]


@functools.cache
def whole_state() -> dict[str, np.ndarray]:
    """The tensors of a BertForPreTraining."""
    return weights.to_transformers(random_params(CONFIG), CONFIG)


@pytest.fixture
def google(tmp_path: Path) -> Path:
    """A folder as google-research/bert releases it, with the optimizer's moments."""
    folder = tmp_path / "uncased_L-3_H-32_A-4"
    write_google_folder(folder, CONFIG, whole_state(), ENTRIES)
    return folder


@pytest.fixture
def folder(google: Path) -> Path:
    """A folder as transformers writes it."""
    out = google.parent / "saved"
    assert run(google, out) == DONE
    (out / "SHA256SUMS").unlink()
    return out


def run(source: object, out: Path) -> int:
    return cli.main(["convert", "import", f"--from={source}", f"--out={out}"])


def fails_in_one_line(
    source: object, out: Path, message: str, capsys: pytest.CaptureFixture
) -> None:
    """An import fails with one line that has the message, and writes nothing."""
    assert run(source, out) == FAILED
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not out.exists()


def state_of(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def assert_imported(out: Path) -> None:
    """The folder has every tensor bit for bit, and a model that computes."""
    state = state_of(out)
    assert state.keys() == whole_state().keys()
    for name, tensor in whole_state().items():
        np.testing.assert_array_equal(state[name], tensor)
    assert bert_jax.load(out).encode("w1 w2").shape == (1, 32)


def test_a_checkpoint_of_google_research_bert_keeps_every_bit(google: Path, tmp_path: Path) -> None:
    assert run(google, tmp_path / "out") == DONE
    assert_imported(tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert f"imported from `{google}`" in card


def test_a_zip_holds_the_folder(google: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for file in google.iterdir():
            archive.write(file, f"{google.name}/{file.name}")
        archive.writestr("__MACOSX/._vocab.txt", "left out")
    assert run(tmp_path / "model.zip", tmp_path / "out") == DONE
    assert_imported(tmp_path / "out")


def test_weights_may_be_in_several_files_with_old_names(folder: Path, tmp_path: Path) -> None:
    state = {k.replace("LayerNorm.weight", "LayerNorm.gamma"): v for k, v in whole_state().items()}
    state["bert.embeddings.position_ids"] = np.arange(40)[None]
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    names, where = sorted(state), {}
    for part in range(3):
        file = f"model-{part}.safetensors"
        safetensors.numpy.save_file({n: state[n].copy() for n in names[part::3]}, folder / file)
        where |= dict.fromkeys(names[part::3], file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert run(folder, tmp_path / "out") == DONE
    assert_imported(tmp_path / "out")


def test_a_model_without_heads_stays_one(folder: Path, tmp_path: Path) -> None:
    bare = {k.removeprefix("bert."): v for k, v in whole_state().items() if k.startswith("bert.")}
    safetensors.numpy.save_file(bare, folder / "model.safetensors")
    assert run(folder, tmp_path / "out") == DONE
    assert {f"bert.{name}" for name in bare} == state_of(tmp_path / "out").keys()
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["BertModel"]
    model = bert_jax.load(tmp_path / "out")
    with pytest.raises(bert_jax.UserError, match="without its masked-language-model head"):
        model.fill_mask("w1 [MASK]")


def test_rows_without_an_entry_are_kept_and_never_predicted(folder: Path, tmp_path: Path) -> None:
    """Released models may have more rows than vocab.txt has entries, as IndoBERT's 50,000."""
    more = {}
    for name, tensor in whole_state().items():
        new = np.full((5, *tensor.shape[1:]), 9, tensor.dtype)  # the likeliest ones
        more[name] = np.concatenate([tensor, new]) if len(tensor) == len(ENTRIES) else tensor
    safetensors.numpy.save_file(more, folder / "model.safetensors")
    settings(vocab_size=len(ENTRIES) + 5)(folder)
    assert run(folder, tmp_path / "out") == DONE
    for name, tensor in state_of(tmp_path / "out").items():
        np.testing.assert_array_equal(tensor, more[name])
    model = bert_jax.load(tmp_path / "out")
    (fills,) = model.fill_mask("w1 [MASK]", top_k=len(ENTRIES))
    assert {fill.token for fill in fills} == {*ENTRIES}
    with pytest.raises(bert_jax.UserError, match="top_k=100; give 1 to 99"):
        model.fill_mask("w1 [MASK]", top_k=100)


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the model as `org/bert`, and an empty cache."""
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    files |= {"tf_model.h5": b"not needed", "onnx/model.onnx": b"not needed"}
    with serve(Hub({"org/bert": {"main": files, "v1": files}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        yield server


def test_a_model_on_the_hub_has_its_commit_in_the_card(hub: Hub, tmp_path: Path) -> None:
    assert run("hf:org/bert@v1", tmp_path / "out") == DONE
    assert_imported(tmp_path / "out")
    assert (
        f"imported from `hf:org/bert@{commit_of('v1')}`" in (tmp_path / "out/README.md").read_text()
    )
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert values["imported_from"] == f"hf:org/bert@{commit_of('v1')}"  # for `config.init`
    fetched = {path.rpartition("/")[2] for path in hub.requests if "/resolve/" in path}
    assert fetched == {
        "config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json", "vocab.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        ((), "model_head.pkl", "a classifier of SetFit on the vectors"),
        (("tokenizer.json", "vocab.txt"), "spiece.model", "a vocabulary of SentencePiece that"),
    ],
)
def test_a_file_that_is_not_downloaded_is_refused_as_in_a_folder(
    removed: tuple[str, ...], added: str, message: str, hub: Hub, folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    for name in removed:
        (folder / name).unlink()
    (folder / added).write_bytes(b"x")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.move("org/other", "main", files)
    fails_in_one_line(folder, tmp_path / "out", f"{folder}/{added}: {message}", capsys)
    name = "hf:org/other"
    fails_in_one_line(name, tmp_path / "out", f"{name}/{added}: {message}", capsys)
    assert not any("model.safetensors" in path for path in hub.requests)
    if removed:
        with pytest.raises(UserError, match=f"^{name}/{added}: {message}"):
            load_tokenizer(name)
    else:
        assert load_tokenizer(name).vocab_size == len(ENTRIES)


def test_without_a_network_the_cached_copy_is_used(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert run("hf:org/bert", tmp_path / "out") == DONE
    use_endpoint(monkeypatch, "http://127.0.0.1:1")
    assert run("hf:org/bert", tmp_path / "again") == DONE
    assert_imported(tmp_path / "again")
    capsys.readouterr()
    assert run("hf:org/bert@v1", tmp_path / "other") == FAILED
    line = capsys.readouterr().err
    assert "hf:org/bert@v1: cannot be downloaded and is not in the cache" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/none", "no such model; check the name"),
        ("org/bert@v2", "no such revision"),
        ("a/b/c", "not a model's name"),
    ],
)
def test_a_name_that_the_hub_does_not_have_is_one_line(
    name: str, message: str, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(f"hf:{name}", tmp_path / "out") == FAILED
    line = capsys.readouterr().err
    assert f"hf:{name}: {message}" in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def tensors(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]):
    def damage(folder: Path) -> None:
        safetensors.numpy.save_file(change(dict(whole_state())), folder / "model.safetensors")

    return damage


def settings(**changes: object):
    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | changes))

    return damage


def sharded(where: object):
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))

    return damage


def unlisted(folder: Path) -> None:
    """The index lacks the first tensor."""
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    where = dict.fromkeys(sorted(whole_state())[1:], "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def unlisted_lines(folder: Path) -> None:
    """A file of a shard has a tensor whose name is two lines."""
    tensors(lambda t: t | {"a\nb": t[QUERY]})(folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    where = dict.fromkeys(whole_state(), "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def link_outside(folder: Path) -> None:
    outside = shutil.move(folder / "vocab.txt", folder.parent / "vocab.txt")
    (folder / "vocab.txt").symlink_to(outside)


def link_to_itself(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")


def halve(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def unfinished(folder: Path) -> None:
    """As `hf download --local-dir` leaves it when it is stopped."""
    downloads = folder / ".cache/huggingface/download"
    downloads.mkdir(parents=True)
    (folder / "model.safetensors").rename(downloads / "WtQ.0123abcd.incomplete")


def pointer(name: str):
    """As `git clone` leaves a file where Git LFS is not installed."""

    def damage(folder: Path) -> None:
        oid = f"oid sha256:{'0' * 64}\nsize 440449768\n"
        (folder / name).write_text(f"version https://git-lfs.github.com/spec/v1\n{oid}")

    return damage


WORD, QUERY = (
    "bert.embeddings.word_embeddings.weight",
    "bert.encoder.layer.0.attention.self.query.bias",
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (tensors(lambda t: {k: v for k, v in t.items() if k != QUERY}), f"no {QUERY}"),
        (
            tensors(lambda t: t | {"classifier.weight": t[QUERY]}),
            "no parameter for classifier.weight",
        ),
        (tensors(lambda t: t | {"a\nb\x1b[31m": t[QUERY]}), "has no parameter for a\\nb\\x1b[31m"),
        (tensors(lambda t: t | {QUERY: t[QUERY][1:].copy()}), f"{QUERY} has shape [31]"),
        (
            tensors(lambda t: t | {"cls.predictions.decoder.weight": t[WORD] + 1}),
            "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight",
        ),
        (
            tensors(lambda t: {f"module.{k}": v for k, v in t.items()}),
            "all names of tensors begin with module., as DataParallel names them; save its model.m",
        ),
        (
            tensors(lambda t: {f"_orig_mod.{k}": v for k, v in t.items()}),
            "begin with _orig_mod., as torch.compile names them; save the model that is not comp",
        ),
        (settings(model_type="xlnet"), "model_type='xlnet'"),
        (settings(auto_map={"AutoModel": "code.Model"}), "auto_map), which bert-jax never runs"),
        (sharded({"a": "../weights"}), "'../weights' is not the name of a file beside it"),
        (sharded({"a": "two\nlines"}), r"'two\nlines' is not the name of a file beside it"),
        (sharded({"a": "absent.safetensors"}), "absent.safetensors: missing, but model.safe"),
        (sharded({}), "no weight_map"),
        (unlisted, f"has {sorted(whole_state())[0]}, which model.safetensors.index.json does not"),
        (unlisted_lines, r"has a\nb, which model.safetensors.index.json does not list"),
        (link_outside, "vocab.txt: a symbolic link to a file outside"),
        (link_to_itself, "model.safetensors: missing; give a folder"),
        (halve, "model.safetensors: cannot be read"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: missing; give a folder"),
        (unfinished, "model.safetensors: missing, and a download there is not"),
        (pointer("model.safetensors"), "model.safetensors: a pointer of Git LFS; fetch it with"),
        (pointer("tokenizer.json"), "tokenizer.json: a pointer of Git LFS; fetch it with"),
    ],
)
def test_a_model_that_is_not_whole_is_one_line(
    damage: Callable, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    damage(folder)
    fails_in_one_line(folder, tmp_path / "out", message, capsys)


def test_a_link_to_a_file_outside_is_not_loaded(folder: Path) -> None:
    link_outside(folder)
    with pytest.raises(UserError, match=r"^[^\n]*vocab\.txt: a symbolic link to a file outside"):
        bert_jax.load(folder)


def test_a_snapshot_in_the_cache_of_the_hub_is_loaded(folder: Path, tmp_path: Path) -> None:
    """Its files are links to blobs beside the snapshots."""
    snapshot, blobs = tmp_path / "cache/snapshots/0123abcd", tmp_path / "cache/blobs"
    for new in (snapshot, blobs):
        new.mkdir(parents=True)
    for i, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, blobs / str(i))
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    assert bert_jax.load(snapshot).config == bert_jax.load(folder).config


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: shutil.copy(f / "bert_model.ckpt.index", f / "b.index"), "needs one TensorFlow"),
        (lambda f: (f / "vocab.txt").unlink(), "vocab.txt: cannot read the vocabulary"),
        (lambda f: (f / "bert_config.json").write_text("{"), "bert_config.json: not JSON"),
        (lambda f: (f / "bert_config.json").write_text("{}"), "bert_config.json: no vocab_size"),
    ],
)
def test_a_google_folder_that_is_not_whole_is_one_line(
    damage: Callable, message: str, google: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    damage(google)
    fails_in_one_line(google, tmp_path / "out", message, capsys)


def test_a_damaged_file_in_a_zip_is_named_as_the_user_has_it(
    google: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (google / "bert_config.json").write_text("{}")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for file in google.iterdir():
            archive.write(file, file.name)
    message = f"{tmp_path / 'model.zip'}/bert_config.json: no vocab_size"
    fails_in_one_line(tmp_path / "model.zip", tmp_path / "out", message, capsys)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent", "no such folder; a model on the Hugging Face hub is hf:OWNER/NAME[@REVISION]"),
        ("a.zip", "holds no model of google-research/bert"),
        ("file", "a file, but not a zip"),
        ("https://host/org/bert", "unknown protocol https://; use gs://"),
    ],
)
def test_a_source_that_is_no_model_is_one_line(
    source: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/readme.txt", "no model")
    (tmp_path / "file").write_text("text")
    given = source if "://" in source else str(tmp_path / source)
    assert run(given, tmp_path / "out") == FAILED
    line = capsys.readouterr().err
    assert f"{given}: {message}" in line
    assert line.count("\n") == 1


@pytest.mark.skipif("BERT_JAX_REAL_DATA" not in os.environ, reason="needs BERT_JAX_REAL_DATA")
def test_a_real_checkpoint_of_tensorflow_is_imported(tmp_path: Path) -> None:
    folder = Path(os.environ["BERT_JAX_REAL_DATA"]) / "checkpoints/tf1-tiny-bert"
    assert run(folder, tmp_path / "out") == DONE
    assert len(state_of(tmp_path / "out")) == 46  # 139 tensors without moments and step
    assert len(bert_jax.load(tmp_path / "out").fill_mask("all work and no [MASK]")[0]) == 5


# In a bucket.


@pytest.mark.skipif(not importlib.util.find_spec("gcsfs"), reason="needs the extra [gcs]")
@pytest.mark.parametrize("kind", ["google", "folder"])
def test_a_folder_in_a_bucket_is_imported(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulated(monkeypatch, "bucket") as server:
        for file in request.getfixturevalue(kind).iterdir():
            server.write("bucket", f"models/tiny/{file.name}", file.read_bytes())
            server.write("bucket", f"models/head/{file.name}", file.read_bytes())
        server.write("bucket", "models/tiny/training.log", b"not needed")
        server.write("bucket", "models/head/model_head.pkl", b"of SetFit")
        assert run("gs://bucket/models/tiny", tmp_path / "out") == DONE
        assert run("gs://bucket/models/none", tmp_path / "none") == FAILED
        if kind == "folder":
            assert run("gs://bucket/models/head", tmp_path / "none") == FAILED
    assert_imported(tmp_path / "out")


# pytorch_model.bin


def test_an_older_pytorch_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Before 2.10 its `weights_only` could run code."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    torch = SimpleNamespace(__version__="2.9.1+cpu", load=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    message = "pytorch_model.bin: PyTorch 2.9.1+cpu is not safe to read it; install 2.10"
    fails_in_one_line(folder, tmp_path / "out", message, capsys)


@pytest.mark.torch
@pytest.mark.parametrize(("legacy", "shards"), [(False, 1), (True, 1), (False, 2)])
def test_weights_of_pytorch_are_imported(
    legacy: bool, shards: int, folder: Path, tmp_path: Path
) -> None:
    write_pytorch(folder, dict(whole_state()), legacy=legacy, shards=shards)
    assert run(folder, tmp_path / "out") == DONE
    assert_imported(tmp_path / "out")


@pytest.mark.torch
@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_runs_no_code(
    legacy: bool, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import torch

    class Payload:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "ran",))

    (folder / "model.safetensors").unlink()
    state = {"bert.pooler.dense.bias": Payload()}
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    fails_in_one_line(folder, tmp_path / "out", "pytorch_model.bin: cannot be read", capsys)
    assert not (tmp_path / "ran").exists()
