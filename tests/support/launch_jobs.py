"""Jobs of the launch tests, and their renderings as text."""

import dataclasses
import re
import sys
from typing import Any

from bert_jax.hardware import slices
from bert_jax.launch.bundle import Bundle
from bert_jax.launch.job import Backend, Job
from bert_jax.launch.restarts import Limits

IMAGE = f"example.org/bert@sha256:{'1' * 64}"
# What a shell, a YAML file or Kubernetes could change on the way to the trainer.
AWKWARD = ("a b", "it's", '"q"', "$HOME", "$(date)", "`id`", "two\nlines", "*", "\\", "${X}", "%j")
BUNDLE = Bundle(digest="0123456789abcdef" * 4, archive=b"", version="0.2.0", has_code=True)


def job(topology: str | None = None, **changes: Any) -> Job:
    """A job on a pod's slices, or on nodes that share a disk."""
    workdir = "gs://bucket/b1" if topology else "/shared/b1"
    values: dict[str, Any] = {
        "name": "b1",
        "workdir": workdir,
        "command": ("pretrain", "--config=wiki_books_base", f"--workdir={workdir}"),
        "cwd": "/home/me",
        "bundle": dataclasses.replace(BUNDLE, has_code=topology is None),
        "topology": slices.find(topology) if topology else None,
        "limits": Limits(),
    }
    return Job(**values | changes)


def rented(**changes: Any) -> Job:
    """A job on machines that share nothing but a bucket, with code that travels."""
    workdir = "gs://bucket/b1"
    command = ("pretrain", "--config=wiki_books_base", f"--workdir={workdir}")
    return job(**{"workdir": workdir, "command": command} | changes)


def golden(backend: Backend, of: Job) -> str:
    """Commands and files as `--dry_run` prints them, with any machine's Python."""
    text = backend.render(of).text().replace(sys.executable, "PYTHON") + "\n"
    return re.sub(r"(?<=--- agent\.txt\n)\([\d,]+ bytes\)", "(the agent)", text)
