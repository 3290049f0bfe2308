"""The output of hosts, printed from its pieces in the bucket."""

import pytest
from memory_bucket import MemoryBucket

from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu.history import Attempt, History, Plan
from bert_jax.launch.tpu.job_records import Records, Snapshot
from bert_jax.launch.tpu.log_pieces import Printer, print_last
from bert_jax.launch.tpu.submission import Submission


class Logs:
    """Logs of hosts in a bucket, each piece a second after the one before."""

    def __init__(self) -> None:
        self.bucket, self.reads = MemoryBucket(), 0
        self.records = Records(self.bucket, 1)
        self.bucket.before = self.count
        self.operations: list[str] = []
        self._sizes: dict[str, int] = {}

    def count(self, what: str) -> None:
        self.reads += what == "read"

    def look(self, attempts: int, resources: int = 1) -> Snapshot:
        """At a job of two hosts; attempts: their number on each queued resource."""
        plan = Plan((Attempt(),) * attempts)
        submission = Submission(
            digest="", topology="v4-16", hosts=2, first=1, bundle="", version="", words=(),
            python_path=(), env=(), env_from=(), limits=Limits(),
        )  # fmt: skip
        return Snapshot(
            submission=submission, stopping=False, end=None, reported=False, hosts={}, idle=0.0,
            histories=tuple(History(1 + index, plan) for index in range(resources)), watching=None,
        )  # fmt: skip

    def append(self, host: int, text: str, attempt: int = 1, number: int = 1) -> None:
        log = f"{self.records.log_folder(number, host)}/{attempt:04d}"
        position = self._sizes.get(log, 0)
        self._sizes[log] = position + len(text)
        self.bucket.write(f"{log}-{position:012d}", text.encode())
        self.bucket.now += 1.0


@pytest.fixture
def logs():
    return Logs()


def test_each_line_is_printed_once_when_it_is_complete(logs, capsys):
    printer = Printer(logs.records)
    logs.append(0, "a\nb")
    logs.append(1, "x\n")
    printer.print_written()
    assert capsys.readouterr().out == "host-0 | a\nhost-1 | x\n"
    snapshot = logs.look(attempts=2)
    printer.print_new(snapshot)
    assert capsys.readouterr().out == ""
    logs.append(0, "b\nc")
    logs.append(0, "agent\n", attempt=0)
    logs.append(1, "y\n", attempt=2)
    logs.append(1, "z\n", attempt=2)
    printer.print_new(snapshot)
    assert capsys.readouterr().out == "host-0 | agent\nhost-0 | bb\nhost-1 | y\nhost-1 | z\n"
    printer.print_rest()
    assert capsys.readouterr().out == "host-0 | c\n"


def test_what_grows_is_followed_without_a_look_at_what_is_printed(logs, capsys):
    """Over attempts and queued resources; a request for each log that may have grown."""
    for index in range(100):
        logs.append(index % 2, f"{index}\n")
    printer = Printer(logs.records)
    printer.print_written()
    assert len(capsys.readouterr().out.splitlines()) == 100
    logs.bucket.before = logs.operations.append
    for attempt in range(1, 30):
        logs.append(0, f"attempt {attempt}\n", attempt=attempt)
        logs.operations.clear()
        printer.print_new(logs.look(attempts=attempt))
        assert capsys.readouterr().out == f"host-0 | attempt {attempt}\n"
        assert "list" not in logs.operations
    logs.append(1, "last of 1\n", attempt=29)
    logs.append(0, "first of 2\n", number=2)
    printer.print_new(logs.look(attempts=29, resources=2))
    assert capsys.readouterr().out == "host-1 | last of 1\nhost-0 | first of 2\n"
    logs.operations.clear()
    printer.print_new(logs.look(attempts=1, resources=2))
    assert logs.operations == ["read"] * 4, "of two hosts, each its agent's log and the attempt's"


def test_the_last_lines_are_those_of_the_newest_pieces(logs, capsys):
    for index in range(100):
        logs.append(index % 2, f"{2 * index}\n{2 * index + 1}\n")
    print_last(logs.records)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"host-{index // 2 % 2} | {index}" for index in range(180, 200)]
    assert logs.reads == 10, "the others, of days, are not read"


def test_a_job_without_output_has_no_last_lines(logs, capsys):
    print_last(logs.records)
    assert capsys.readouterr().out == ""
