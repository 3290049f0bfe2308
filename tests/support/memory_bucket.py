"""A bucket in memory, with a clock of its own, for tests of what is written to one."""

import itertools
from collections.abc import Callable

from bert_jax.launch.tpu.bucket import Bucket, Entry


class MemoryBucket(Bucket):
    """`before` is called with every operation's name before its effect, `after` after it: either
    may raise."""

    def __init__(self, url: str = "gs://bucket/run/launch/job"):
        super().__init__(url, lambda: "")
        self.now = 0.0
        self.before: Callable[[str], object] = lambda what: None
        self.after: Callable[[str], object] = lambda what: None
        self._objects: dict[str, tuple[bytes, str, float]] = {}
        self._versions = itertools.count(1)

    def read(self, name: str) -> bytes | None:
        self.before("read")
        found = self._objects.get(name)
        return found[0] if found else None

    def write(self, name: str, data: bytes, *, new: bool = False) -> bool:
        self.before("write")
        if new and name in self._objects:
            return self._objects[name][0] == data
        self._objects[name] = (data, str(next(self._versions)), self.now)
        self.after("write")
        return True

    def list(self, prefix: str = "") -> list[Entry]:
        self.before("list")
        return [
            Entry(name, len(data), version, self.now - written)
            for name, (data, version, written) in sorted(self._objects.items())
            if name.startswith(prefix)
        ]

    def delete(self, name: str) -> None:
        self.before("delete")
        self._objects.pop(name, None)
        self.after("delete")
