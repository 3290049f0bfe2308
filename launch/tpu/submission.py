"""The submission that the hosts of a job read, and the machine attribute that leads to it."""

import dataclasses
import re
from typing import Any

from bert_jax.launch.restarts import Limits

ROOT = "@BUNDLE@"
RESOURCE = "bert-jax-resource"  # metadata attribute of a host: where its records are


@dataclasses.dataclass(frozen=True)
class Submission:
    """job.json: what the hosts need of a job, and what identifies it.

    digest: of the command line (`Job.digest`). topology: name of the slices. first: number of its
    first queued resource. words: the command; ROOT stands for the folder of the unpacked bundle.
    python_path: as PYTHONPATH, likewise. version: the release to install without code in the
    bundle. env_from: (variable, secret of Secret Manager). id: differs from that of every other
    submission, also of one that has the same number after the job was deleted and run again.
    zone, project: of its machines; "" in records of earlier versions, and for gcloud's project in
    a job that is submitted by hand.
    """

    digest: str
    topology: str
    hosts: int
    first: int
    bundle: str
    version: str
    words: tuple[str, ...]
    python_path: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    env_from: tuple[tuple[str, str], ...]
    limits: Limits
    id: str = ""
    zone: str = ""
    project: str = ""

    @classmethod
    def from_json(cls, value: Any) -> "Submission":
        known = _known(cls, value)
        pairs = {key: tuple(map(tuple, value[key])) for key in ("env", "env_from")}
        texts = {key: tuple(value[key]) for key in ("words", "python_path")}
        limits = Limits(**_known(Limits, value["limits"]))
        return cls(**{**known, **pairs, **texts, "limits": limits})

    def to_json(self) -> Any:
        """Returns what `from_json` reads; a submission that is made by hand has no id."""
        value = dataclasses.asdict(self)
        return value if self.id else {key: item for key, item in value.items() if key != "id"}


def _known(kind: type[Any], value: Any) -> dict[str, Any]:
    """Returns the values of a record that a dataclass has; those of later versions are left out."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {key: item for key, item in value.items() if key in names}


def at_root(word: str, root: str) -> str:
    """Returns a word of a submission on a host that has unpacked the bundle in `root`."""
    return re.sub(rf"^(--(?:config|module)=)?{ROOT}", lambda match: f"{match[1] or ''}{root}", word)
