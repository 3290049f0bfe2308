"""The output of hosts, printed from its pieces in the bucket."""

import pytest
from memory_bucket import MemoryBucket

from bert_jax.launch.log_pieces import Printer, print_last
from bert_jax.launch.records import Records


class Logs:
    """Logs of hosts in a bucket, each piece a second after the one before."""

    def __init__(self) -> None:
        self.bucket, self.reads = MemoryBucket(), 0
        self.records = Records(self.bucket, 1)
        self.bucket.before = self.count
        self._sizes: dict[str, int] = {}

    def count(self, what: str) -> None:
        self.reads += what == "read"

    def append(self, host: int, text: str, attempt: int = 1) -> None:
        log = f"{self.records.log_folder(1, host)}/{attempt:04d}"
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
    printer.print_new()
    assert capsys.readouterr().out == "host-0 | a\nhost-1 | x\n"
    printer.print_new()
    assert capsys.readouterr().out == ""
    logs.append(0, "b\nc")
    logs.append(1, "y\n", attempt=2)
    printer.print_new()
    assert capsys.readouterr().out == "host-0 | bb\nhost-1 | y\n"
    printer.print_new(last=True)
    assert capsys.readouterr().out == "host-0 | c\n"


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
