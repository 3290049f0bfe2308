"""Places where a run keeps its checkpoints, with access to each file behind the program's back."""

from pathlib import Path
from typing import Protocol

from gcs_emulator import Emulator


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
