"""The records that the hosts and the launcher of a job write to WORKDIR/launch/NAME.

A job is submitted by a run of `bert-jax launch tpu run`; its records are in a folder of their own:

    bundle-DIGEST.tar               the code that travels
    0001/job.json                   the first submission: what the hosts run
    0001/stop.json                  a request to stop
    0001/end.json                   how the job ended; written once, by host 0 or a launcher
    0001/reported.json              a launcher has reported it
    0001/launcher.json              the launcher that watches, written at every look
    0001/2/plan.json                the attempts on queued resource 2; only its host 0 writes it
    0001/2/active.json              a launcher has seen that its machines are made; written once
    0001/2/hosts/3.json             where its host 3 is; only that host writes it
    0001/2/retired.json             why queued resource 2 was given up; written once, by a launcher
    logs/0001/2/3/0004-000000001234 output of its host 3 in attempt 4, from that byte

No state is anywhere else, so a host or a launcher that is killed resumes from here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.launch.tpu.bucket import Bucket, Entry
from bert_jax.launch.tpu.history import End, History, Hosts, HostState, Plan, Retired
from bert_jax.launch.tpu.submission import Submission


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All records of a submission at one moment.

    submission: None if it was deleted. idle: seconds since a queued resource was last given up.
    watching: the launcher that watches, and the age of that in seconds. next_first: number of the
    first queued resource of the next submission, None before there is one. active: seconds since a
    launcher first saw the machines of a queued resource, by its number.
    """

    submission: Submission | None
    stopping: bool
    end: End | None
    reported: bool
    histories: tuple[History, ...]
    hosts: Mapping[int, Hosts]  # by number of the queued resource
    idle: float
    watching: tuple[Mapping[str, Any], float] | None
    next_first: int | None = None
    active: Mapping[int, float] = dataclasses.field(default_factory=dict)


class Records:
    """The records of one submission of a job."""

    def __init__(self, bucket: Bucket, run: int):
        """bucket: of the job's folder. run: number of the submission, from 1."""
        self.bucket, self.run, self.folder = bucket, run, f"{run:04d}"
        self._known: dict[str, tuple[str, Any]] = {}  # name -> version and value

    def snapshot(self) -> Snapshot:
        values = self._values("")
        numbers = sorted({int(name.split("/")[0]) for name in values if name[0].isdigit()})
        retired = [age for name, (_, age) in values.items() if name.endswith("/retired.json")]
        job, end = values.get("job.json"), values.get("end.json")
        # Only a job that has ended is submitted again.
        following = self.bucket.read_json(f"{self.run + 1:04d}/job.json") if end else None
        return Snapshot(
            submission=Submission.from_json(job[0]) if job else None,
            stopping="stop.json" in values,
            end=End(**end[0]) if end else None,
            reported="reported.json" in values,
            histories=tuple(_history(number, values) for number in numbers),
            hosts={number: _hosts(f"{number}/hosts/", values) for number in numbers},
            idle=min(retired, default=float("inf")),
            watching=values.get("launcher.json"),
            next_first=following["first"] if following else None,
            active={
                int(name.split("/")[0]): age
                for name, (_, age) in values.items()
                if name.endswith("/active.json")
            },
        )

    def submission(self) -> Submission | None:
        """None if it was deleted."""
        value = self.bucket.read_json(f"{self.folder}/job.json")
        return None if value is None else Submission.from_json(value)

    def wanted(self, number: int, submission_id: str) -> Submission | None:
        """Returns the submission for which the hosts of a queued resource are to work; None if they
        are to give their machines back: the job was deleted, has ended, or continues under another
        launcher.

        submission_id: of the one that the queued resource was requested for.
        """
        found = self.submission()
        if found is None or (submission_id and submission_id != found.id):
            return None
        return None if self.is_marked("end") or self.is_retired(number) else found

    def is_retired(self, number: int) -> bool:
        """Returns whether a launcher has given a queued resource up."""
        return self.is_marked(f"{number}/retired")

    def mark(self, what: str, **about: Any) -> None:
        """Writes such a record, stop.json for "stop", unless it exists."""
        self.bucket.write_json(f"{self.folder}/{what}.json", about, new=True)

    def report(self, submission_id: str) -> None:
        """Records that a launcher has reported how a submission ended, unless it was deleted."""
        found = self.submission()
        if found and found.id == submission_id:
            self.mark("reported")

    def is_marked(self, what: str) -> bool:
        return self.bucket.read(f"{self.folder}/{what}.json") is not None

    def set_end(self, end: End) -> None:
        """Records how the job ended, unless that is known."""
        name = f"{self.folder}/end.json"
        self.bucket.write_json(name, dataclasses.asdict(end), new=True)

    def retire(self, number: int, retired: Retired) -> None:
        """Records why a queued resource is given up, unless that is known."""
        name = f"{self.folder}/{number}/retired.json"
        self.bucket.write_json(name, dataclasses.asdict(retired), new=True)

    def note_active(self, number: int) -> None:
        """Records that the machines of a queued resource are made, unless that is known."""
        self.bucket.write_json(f"{self.folder}/{number}/active.json", {}, new=True)

    def watch(self, about: Mapping[str, Any]) -> None:
        """Records which launcher watches."""
        self.bucket.write_json(f"{self.folder}/launcher.json", about)

    def release(self, about: Mapping[str, Any]) -> None:
        """Records that this launcher no longer watches."""
        if self.bucket.read_json(f"{self.folder}/launcher.json") == about:
            self.bucket.delete(f"{self.folder}/launcher.json")

    def plan(self, number: int) -> Plan:
        value = self.bucket.read_json(f"{self.folder}/{number}/plan.json")
        return Plan() if value is None else Plan.from_json(value)

    def set_plan(self, number: int, plan: Plan) -> None:
        self.bucket.write_json(f"{self.folder}/{number}/plan.json", dataclasses.asdict(plan))

    def hosts(self, number: int) -> Hosts:
        return _hosts("", self._values(f"{number}/hosts/"))

    def set_host(self, number: int, index: int, state: HostState) -> None:
        name = f"{self.folder}/{number}/hosts/{index}.json"
        self.bucket.write_json(name, dataclasses.asdict(state))

    def log_folder(self, number: int, index: int) -> str:
        return f"logs/{self.folder}/{number}/{index}"

    def log_pieces(self) -> list[Entry]:
        """Returns the pieces of output of all hosts, in the order in which they were written."""
        pieces = self.bucket.list(f"logs/{self.folder}/")
        return sorted(pieces, key=lambda piece: (-piece.age, piece.name))

    def _values(self, below: str) -> dict[str, tuple[Any, float]]:
        """Returns value and age of every record below a folder, by name; reads what has changed."""
        values = {}
        for entry in self.bucket.list(f"{self.folder}/{below}"):
            version, value = self._known.get(entry.name, ("", None))
            if version != entry.version:
                value = self.bucket.read_json(entry.name)
                self._known[entry.name] = (entry.version, value)
            if value is not None:  # it may have been deleted since
                name = entry.name.removeprefix(f"{self.folder}/{below}")
                values[name] = (value, entry.age)
        return values


def _history(number: int, values: Mapping[str, tuple[Any, float]]) -> History:
    plan, retired = values.get(f"{number}/plan.json"), values.get(f"{number}/retired.json")
    return History(
        number,
        Plan.from_json(plan[0]) if plan else Plan(),
        Retired(**retired[0]) if retired else None,
        reported=any(
            name.startswith((f"{number}/plan", f"{number}/hosts/", f"{number}/active"))
            for name in values
        ),
    )


def _hosts(folder: str, values: Mapping[str, tuple[Any, float]]) -> Hosts:
    return {
        int(name[len(folder) :].removesuffix(".json")): (HostState(**value), age)
        for name, (value, age) in values.items()
        if name.startswith(folder)
    }
