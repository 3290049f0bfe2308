"""Places where a run keeps its checkpoints, with access to each file behind the program's back; and
what saves to them and restores from them."""

from os import PathLike
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from gcs_emulator import Emulator
from saving_process import keeping, over, state_of

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.workdir.layout import Workdir

ABSTRACT = over(jax.devices()[:1])[1]


class Place(Protocol):
    """Names are relative to the run, such as "checkpoints/12/meta/metadata"."""

    where: str
    run: str

    def names(self) -> list[str]: ...
    def arrays(self, item: str) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...
    def delete(self, name: str) -> None: ...


class Disk:
    where = "disk"

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, str(path)

    def names(self) -> list[str]:
        files = (path for path in self.path.rglob("*") if not path.is_dir())
        return sorted(str(path.relative_to(self.path)) for path in files)

    def arrays(self, item: str) -> list[str]:
        """The files with arrays of an item of checkpoint 12, the largest last."""
        folder = self.path / "checkpoints" / "12" / item
        files = sorted(folder.rglob("d/*"), key=lambda file: (file.stat().st_size, str(file)))
        return [str(file.relative_to(self.path)) for file in files]

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)

    def delete(self, name: str) -> None:
        (self.path / name).unlink()


class Bucket:
    """The folder "run" of the bucket "bucket"."""

    where, run = "bucket", "gs://bucket/run"

    def __init__(self, server: Emulator) -> None:
        self.server = server

    def names(self) -> list[str]:
        return [name.removeprefix("run/") for name in self.server.names("bucket", "run/")]

    def arrays(self, item: str) -> list[str]:
        """The objects with arrays of an item of checkpoint 12, the largest last."""
        names = (name for name in self.names() if name.startswith(f"checkpoints/12/{item}/"))
        return sorted((name for name in names if "/d/" in name), key=lambda n: len(self.read(n)))

    def read(self, name: str) -> bytes:
        return self.server.read("bucket", f"run/{name}")

    def write(self, name: str, data: bytes) -> None:
        self.server.write("bucket", f"run/{name}", data)

    def delete(self, name: str) -> None:
        self.server.delete("bucket", f"run/{name}")


def save(checkpoints: RunCheckpoints, step: int) -> None:
    checkpoints.save(jax.tree.map(jnp.asarray, state_of(step)), {"about": step})
    checkpoints.wait()


def restored(run: str | PathLike[str], *, strict: bool = False) -> int:
    """The restored step; asserts that all bits are as saved."""
    found = RunCheckpoints(Workdir.open(run), keeping(9)).restore_newest(ABSTRACT, strict=strict)
    assert found is not None
    step = found[1]["step"]
    for x, y in zip(jax.tree.leaves(found[0]), jax.tree.leaves(state_of(step)), strict=True):
        assert np.asarray(x).tobytes() == y.tobytes()
    return step
