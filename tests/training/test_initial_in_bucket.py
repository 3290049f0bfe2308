"""`config.init` in a bucket: a run, an export, and what a copy of one may meet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import small_config, small_store
from gcs_emulator import Emulator, emulated
from nightly import others_nightly

import bert_jax
from bert_jax.checkpoint import manager
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.publish.export import run_export
from bert_jax.storage import local_copy
from bert_jax.storage.read_files import path_of
from bert_jax.training import loop
from bert_jax.training.options import RunOptions
from bert_jax.training.resolve import find_architecture
from bert_jax.workdir.layout import Workdir

pytest.importorskip("gcsfs", reason="needs the extra [gcs]")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("initial") / "store")


@pytest.fixture(scope="module")
def source(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir in `run`, its export with the optimizer's moments in `exported`, and `google`."""
    folder = tmp_path_factory.mktemp("source")
    loop.pretrain(small_config(store).replace("phases[0].steps", 2), folder / "run")
    run_export(folder / "run", folder / "exported", optimizer_state=True)
    (folder / "google").mkdir()
    (folder / "google/bert_config.json").write_text("{}")
    return folder


@pytest.fixture
def server(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Serves the folders of `source`; the cache is empty."""
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    with emulated(monkeypatch, "bucket") as emulator:
        for file in source.rglob("*"):
            if file.is_file():
                emulator.write("bucket", file.relative_to(source).as_posix(), file.read_bytes())
        yield emulator


def config_of(store: TokenStore, init: str) -> Config:
    changes = {"phases[0].steps": 4, "init": init, "init_optimizer": "carry"}
    return small_config(store).replace(changes)


def fingerprints(run: Path) -> object:
    return manager.load_params(Workdir.open(run))[1]["fingerprints"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exported", "run", "run@2"])
def test_a_run_starts_from_a_bucket_as_from_a_disk(
    name: str, store: TokenStore, source: Path, server: Emulator, tmp_path: Path
) -> None:
    loop.pretrain(config_of(store, str(source / name)), tmp_path / "undisturbed")
    config = config_of(store, f"gs://bucket/{name}")
    with pytest.raises(bert_jax.errors.StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=3))
    for left in server.names("bucket"):  # which a run that resumes needs no more
        server.delete("bucket", left)
    assert find_architecture(config.init, tmp_path / "run") == config.model
    loop.pretrain(config, tmp_path / "run")
    assert fingerprints(tmp_path / "run") == fingerprints(tmp_path / "undisturbed")


def test_the_architecture_is_read_without_the_weights(source: Path, server: Emulator) -> None:
    for name in ("exported", "run"):
        server.requests.clear()
        assert find_architecture(f"gs://bucket/{name}") == find_architecture(str(source / name))
        assert not server.count("GET", "model.safetensors")
    assert find_architecture("gs://bucket/none") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "config.init=gs://bucket/none: no such folder; give that of a run, an import or "),
        ("run@7", "no checkpoint of step 7"),
        ("google", "import it first: bert-jax convert import --from=gs://bucket/google --out"),
    ],
)
def test_a_model_that_cannot_be_started_from_is_one_line(
    name: str, message: str, store: TokenStore, server: Emulator, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        loop.pretrain(config_of(store, f"gs://bucket/{name}"), tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_messages_name_the_bucket_and_not_the_copy(server: Emulator) -> None:
    server.write("bucket", "exported/config.json", b"{")
    with pytest.raises(UserError, match=r"^gs://bucket/exported/config\.json: "):
        find_architecture("gs://bucket/exported")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", others_nightly(["flip_every", "truncate_every"], keep=["flip_every"])
)
def test_a_copy_that_arrives_damaged_is_not_kept(
    fault: str, source: Path, server: Emulator
) -> None:
    path = path_of("gs://bucket/exported/model.safetensors")
    setattr(server.faults, fault, 1)
    with pytest.raises(UserError, match=r"^gs://bucket/exported/model\.safetensors: "):
        local_copy.local_folder([path])
    setattr(server.faults, fault, 0)
    copied = local_copy.local_folder([path]) / path.name
    assert copied.read_bytes() == (source / "exported/model.safetensors").read_bytes()
