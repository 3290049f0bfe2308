"""`bert-jax launch tpu` as processes against a cloud on loopback."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gcloud_transcripts
import pytest
from gcs_emulator import Emulator
from processes import config_file
from tpu_cloud import ZONE, TpuCloud

from bert_jax.config.schema import Config

_SHARED = (
    "XLA_FLAGS", "BERT_JAX_CACHE", "NUMBA_CACHE_DIR", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES",
)  # fmt: skip
LIMIT = 300.0  # seconds for whatever is waited for; on a busy machine of two cores


class Site:
    """A bucket, a cloud, and the machines of users."""

    def __init__(self, folder: Path, bucket: Emulator, cloud: TpuCloud, gcloud: Path):
        """gcloud: folder with the program of that name."""
        self.folder, self.bucket, self.cloud = folder, bucket, cloud
        self.launchers: list[Launcher] = []
        self.env = {
            **os.environ,
            **bucket.env,
            **gcloud_transcripts.settings(cloud.url, folder / "settings"),
            "PATH": f"{gcloud}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }
        # Its compiler would refuse models this small; tests/commands/test_launch_fits.py asks it.
        self.env.pop("BERT_JAX_LIBTPU", None)

    def run(self, config: Config, topology: str, *flags: str, name: str = "b1") -> "Launcher":
        """Starts `launch tpu run` of a job whose hosts have one CPU device each."""
        path = config_file(config, self.folder / "config.py")
        trainer = ["pretrain", f"--config={path}"]
        return self.run_words([f"--topology={topology}", *flags], trainer, name)

    def run_words(
        self, flags: Sequence[str], trainer: Sequence[str], name: str = "b1"
    ) -> "Launcher":
        """As `run`, of a command with its flags."""
        words = [f"--name={name}", f"--zone={ZONE}", "--poll=1", "--allow_dirty", *flags]
        place = (f"--workdir=gs://bucket/{name}", "--cpu_devices=1")
        return self.start("run", *words, *trainer, *place)

    def command(self, verb: str, name: str = "b1") -> "Launcher":
        """Starts another command about a job."""
        where = f"--workdir=gs://bucket/{name}"
        return self.start(verb, f"--name={name}", where, f"--zone={ZONE}", "--poll=1")

    def start(self, *words: str) -> "Launcher":
        self.launchers.append(Launcher(["launch", "tpu", *words], self.env, self.folder))
        return self.launchers[-1]

    def objects(self, name: str = "b1", below: str = "launch/") -> list[str]:
        return self.bucket.names("bucket", f"{name}/{below}")

    def saved(self, step: int, name: str = "b1") -> bool:
        """Whether a checkpoint of this step or a later one is complete."""
        names = self.objects(name, below="checkpoints/")
        steps = [each.split("/")[2] for each in names if each.endswith("/commit_success.txt")]
        return any(int(found) >= step for found in steps if found.isdigit())

    def upload(self, folder: Path, name: str) -> None:
        """Copies the files of a folder to gs://bucket/NAME."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                below = path.relative_to(folder).as_posix()
                self.bucket.write("bucket", f"{name}/{below}", path.read_bytes())

    def download(self, name: str, folder: Path) -> Path:
        """Copies a workdir to this disk."""
        for path in self.bucket.names("bucket", f"{name}/"):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.bucket.read("bucket", path))
        return folder / name


class Launcher:
    """A command at work."""

    def __init__(self, words: Sequence[str], env: dict[str, str], folder: Path):
        self.output = folder / f"launcher_{time.monotonic_ns()}.txt"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bert_jax", *words], env=env, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Waits until it has printed something."""
        until(lambda: text in self.said(), repr(text), self)

    def code(self) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"still running after {LIMIT:.0f} s:\n{self.said()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def until(
    condition: Callable[[], Any],
    what: str,
    alive: Launcher | None = None,
    *,
    seconds: float = LIMIT,
) -> None:
    """Waits for a condition; fails when the launcher `alive` ends before, or after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        said = f"\n{alive.said()}" if alive else ""
        if time.monotonic() > end:
            pytest.fail(f"no {what} within {seconds:.0f} s{said}")
        if alive and alive.process.poll() is not None and not condition():
            pytest.fail(f"ended with {alive.process.returncode} before {what}{said}")
        time.sleep(0.05)


@contextlib.contextmanager
def site(folder: Path, inputs: Mapping[str, Path], *, recorded: bool) -> Iterator[Site]:
    """A bucket gs://bucket with folders by name, and an empty cloud.
    recorded: gcloud is replayed, also where the real one is installed."""
    with Emulator("bucket") as bucket:
        # The same bits and caches as of other processes of the tests.
        machine_env = bucket.env | {n: os.environ[n] for n in _SHARED if n in os.environ}
        with TpuCloud(folder / "machines", machine_env) as cloud:
            made = Site(
                folder, bucket, cloud, gcloud_transcripts.gcloud(folder / "bin", recorded=recorded)
            )
            try:
                for name, path in inputs.items():
                    made.upload(path, name)
                yield made
            finally:
                for launcher in made.launchers:
                    launcher.kill()
