"""Tests of local jobs: real launchers, real signals, small programs as processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from launched import LAUNCHER, LIMIT, Launched, is_there, of, said, until


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Starts a launcher of processes that run this program; cleans up afterwards."""
    made: list[Launched] = []

    def start(
        body: str, processes: int = 2, ignored: Sequence[signal.Signals] = (), **limits: float
    ) -> Launched:
        made.append(Launched(tmp_path, body, processes, {"between": 0.0, **limits}, ignored))
        return made[-1]

    yield start
    for launched in made:
        launched.alarm.cancel()
        launched.process.kill()
        launched.process.communicate(timeout=LIMIT)
        for pid in filter(is_there, launched.pids()):
            os.kill(pid, signal.SIGKILL)


# Output


@pytest.mark.processes
def test_output_is_merged_in_whole_lines_under_host_names(launch):
    code, lines = launch(
        """
for i in range(300):
    os.write(1, f"out {i} ".encode())
    os.write(2, f"err {i} ".encode())
    os.write(1, host[-1].encode() * 40 + b"\\n")
    os.write(2, host[-1].encode() * 40 + b"\\n")
""",
        processes=3,
    ).wait()
    assert code == 0
    assert len(lines) == 1 + 3 * 600
    for i in "012":
        mine = of(f"host-{i}", lines)
        for stream in ("out", "err"):
            assert [line for line in mine if line.startswith(stream.encode())] == [
                f"{stream} {n} {i * 40}".encode() for n in range(300)
            ]


@pytest.mark.processes
def test_a_line_that_comes_in_parts_waits_for_its_end(launch):
    code, lines = launch("""
if me == 0:
    os.write(1, b"first half, ")
    mark("half")
    there("other")
    os.write(1, b"second half\\n")
else:
    there("half")
    os.write(1, b"between\\n")
    mark("other")
""").wait()
    assert code == 0
    assert b"host-0 | first half, second half" in lines
    assert b"host-1 | between" in lines


@pytest.mark.processes
def test_lines_appear_when_they_are_printed(launch):
    job = launch("print('at work'); there('seen')", processes=1)
    first = job.process.stdout.readline().decode()
    assert job.process.stdout.readline() == b"host-0 | at work\n"
    ((pid, coordinator),) = job.starts("host-0")
    assert first == f"launch | coordinator {coordinator}; host-0 is process {pid}\n"
    (job.folder / "seen").touch()
    assert job.wait()[0] == 0


@pytest.mark.processes
def test_the_unfinished_line_of_a_dead_process_and_bytes_of_no_encoding_are_shown(launch):
    code, lines = launch("""
os.write(1, b"caf\\xe9 \\xff\\xfe\\0 \\r here\\n")
os.write(2, b"last words " + host.encode())
os.kill(os.getpid(), signal.SIGKILL)
""", max_failures=0).wait()  # fmt: skip
    assert code == 43
    for host in ("host-0", "host-1"):
        assert of(host, lines) == [b"caf\xe9 \xff\xfe\0 \r here", b"last words " + host.encode()]


@pytest.mark.processes
def test_a_very_long_line_comes_whole_in_pieces(launch):
    code, lines = launch("sys.stdout.write(str(me) * 5_000_000 + '\\nend\\n')").wait()
    assert code == 0
    for i in (0, 1):
        *pieces, end = of(f"host-{i}", lines)
        assert end == b"end"
        assert b"".join(pieces) == str(i).encode() * 5_000_000
        assert 1 < len(pieces) < 10  # it was not kept whole


@pytest.mark.processes
def test_a_reader_that_goes_away_does_not_end_the_job(launch):
    job = launch("""
there("closed")
for _ in range(1000):
    os.write(1, b"x" * 9999 + b"\\n")
mark(f"{host} done")
""")
    job.process.stdout.readline()
    job.process.stdout.close()
    (job.folder / "closed").touch()
    assert job.process.wait(LIMIT) == 0
    assert job.process.stderr.read() == b""
    job.until("host-0 done", "host-1 done")


@pytest.mark.processes
def test_signals_are_passed_on_while_nobody_reads_the_output(launch):
    job = launch("""
def save(number, frame):
    mark(f"{host} saved")
    sys.exit(42)
signal.signal(signal.SIGTERM, save)
for i in range(40):
    os.write(1, b"x" * 9999 + b"\\n")
mark(f"{host} wrote")
signal.pause()
""")
    job.until("host-0 wrote", "host-1 wrote")  # much more than a pipe holds
    job.process.send_signal(signal.SIGTERM)
    job.until("host-0 saved", "host-1 saved")
    code, lines = job.wait()
    assert code == 42
    assert of("host-0", lines) == of("host-1", lines) == [b"x" * 9999] * 40


@pytest.mark.processes
def test_a_full_disk_under_the_output_does_not_end_the_job(tmp_path):
    (tmp_path / "process.py").write_text("print('line\\n' * 9999)")
    command = [sys.executable, "-c", LAUNCHER, "2", "{}", sys.executable]
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*command, tmp_path / "process.py"], stdout=full, timeout=LIMIT)
    assert done.returncode == 0


# What the exit codes mean


@pytest.mark.parametrize("code", [1, 2, 7, 44, 45])
@pytest.mark.processes
def test_an_error_that_would_come_again_is_not_tried_again(launch, code):
    job = launch(f"sys.exit({code})")
    assert (job.wait()[0], len(job.starts("host-0"))) == (code, 1)


@pytest.mark.processes
def test_preemptions_and_failures_have_budgets_of_their_own(launch):
    job = launch("sys.exit([42, 43, 42, 0][starts - 1])", max_preemptions=2, max_failures=1)
    code, lines = job.wait()
    assert code == 0
    own = [line.replace("host-1, host-0", "host-0, host-1") for line in said(lines)]
    assert own == [
        "host-0, host-1 ended with 42; starting again (1 of 2 preemptions left)",
        "host-0, host-1 ended with 43; starting again (0 of 1 failures left)",
        "host-0, host-1 ended with 42; starting again (0 of 2 preemptions left)",
    ]
    assert len(job.starts("host-0")) == len(job.starts("host-1")) == 4
    places = [coordinator for _, coordinator in job.starts("host-0")]
    assert places == [coordinator for _, coordinator in job.starts("host-1")]
    assert len(set(places)) > 1  # a port of its own for each start


@pytest.mark.parametrize(("code", "name"), [(42, "preemptions"), (43, "failures")])
@pytest.mark.processes
def test_a_budget_that_is_used_up_ends_the_job(launch, code, name):
    job = launch(f"sys.exit({code})", processes=1, max_preemptions=2, max_failures=2)
    ended, lines = job.wait()
    assert (ended, len(job.starts("host-0"))) == (code, 3)
    *_, last = said(lines)
    used = f"not started again: 2 of 2 {name} used (--max_{name})"
    assert last == f"host-0 ended with {code}; {used}"


@pytest.mark.processes
def test_a_host_that_was_killed_is_named(launch):
    code, lines = launch("""
if starts == 1 and me == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if starts == 1:
    sys.exit(43)
""").wait()
    assert code == 0
    assert said(lines) == [
        "host-1 was killed by SIGKILL; host-0 ended with 43; starting again (2 of 3 failures left)"
    ]


@pytest.mark.processes
def test_a_job_that_is_stopped_before_its_next_start_is_not_started(launch):
    job = launch("sys.exit(43)", processes=1, between=600.0)
    assert any(b"starting again in 30 s" in line for line in job.process.stdout)
    job.process.send_signal(signal.SIGINT)
    code, lines = job.wait()
    assert code == 42
    assert said(lines) == ["SIGINT: not started again"]
    assert len(job.starts("host-0")) == 1


# Signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.processes
def test_a_signal_goes_to_all_and_the_job_is_not_started_again(launch, name):
    job = launch("""
def save(number, frame):
    print("saved on", signal.Signals(number).name)
    sys.exit(42)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
mark(f"{host} ready")
while True:
    signal.pause()
""")
    job.until("host-0 ready", "host-1 ready")
    job.process.send_signal(signal.Signals[name])
    code, lines = job.wait()
    assert code == 42
    passed_on = {"SIGHUP": "SIGTERM"}.get(name, name)
    assert of("host-0", lines) == of("host-1", lines) == [f"saved on {passed_on}".encode()]
    assert said(lines)[0] == f"{name}: forwarded; processes still running in 40 s are killed"
    assert said(lines)[1].endswith("ended with 42; not started again")
    assert len(job.starts("host-0")) == 1


@pytest.mark.processes
def test_every_further_signal_is_passed_on(launch):
    job = launch("""
observed = []
def note(number, frame):
    observed.append(number)
    mark(f"{host} {len(observed)}")
signal.signal(signal.SIGINT, note)
mark(f"{host} ready")
while len(observed) < 2:
    time.sleep(0.01)
sys.exit(42)
""")
    for file in ("ready", "1", "2"):
        job.until(f"host-0 {file}", f"host-1 {file}")
        if file != "2":
            job.process.send_signal(signal.SIGINT)
    assert job.wait()[0] == 42


@pytest.mark.processes
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(launch):
    """As under nohup, or in a shell's background job."""
    job = launch(
        """
ignored = {n.name for n in signal.Signals if signal.getsignal(n) == signal.SIG_IGN}
print(sorted(ignored & {"SIGINT", "SIGHUP", "SIGTERM"}))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
mark(f"{host} ready")
while True:
    signal.pause()
""",
        ignored=[signal.SIGINT, signal.SIGHUP],
    )
    job.until("host-0 ready", "host-1 ready")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        job.process.send_signal(number)
    code, lines = job.wait()
    assert code == 42
    first, asked, *_ = said(lines)
    assert first == "SIGINT, SIGHUP: already ignored at the start, not forwarded"
    assert asked.startswith("SIGTERM: forwarded")
    assert of("host-0", lines) == of("host-1", lines) == [b"['SIGHUP', 'SIGINT']"]


@pytest.mark.processes
def test_stopping_a_job_that_waits_for_a_frozen_process_is_no_failure(launch):
    """One has failed, the other would be killed later for not detecting it."""
    job = launch(
        """
mark(f"{host} ready")
if me == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
there("host-1 ready")
sys.exit(43)
""",
        grace=0.1,
        margin=0.1,
        noticing=600.0,
    )
    job.until("host-0 ready", "host-1 ready")
    until(lambda: not is_there(job.starts("host-0")[0][0]))
    job.process.send_signal(signal.SIGINT)
    code, lines = job.wait()
    assert code == 42
    assert "host-1: still running at the deadline, killed" in said(lines)
    assert said(lines)[-1].endswith("not started again")


@pytest.mark.processes
def test_a_process_that_a_passed_on_signal_ends_has_lost_nothing(launch):
    """It had not yet installed its handler: the job was stopped, not lost."""
    job = launch("mark(f'{host} ready'); time.sleep(600)")
    job.until("host-0 ready", "host-1 ready")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait()[0] == 42


@pytest.mark.processes
def test_a_terminal_reaches_the_processes_only_through_the_launcher(launch):
    code, lines = launch("print(os.getsid(0) == os.getpgid(0) == os.getpid())").wait()
    assert code == 0
    assert of("host-0", lines) == of("host-1", lines) == [b"True"]


@pytest.mark.slow
@pytest.mark.processes
def test_what_does_not_end_in_its_grace_is_killed(launch):
    job = launch(
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN if me else lambda *_: sys.exit(42))
mark(f"{host} ready")
while True:
    signal.pause()
""",
        grace=1.0,
        margin=0.5,
    )
    job.until("host-0 ready", "host-1 ready")
    job.process.send_signal(signal.SIGTERM)
    code, lines = job.wait()
    assert code == 42  # one has saved: all that there is
    assert "host-1: still running at the deadline, killed" in said(lines)
    assert (
        said(lines)[-1] == "host-1 was killed by SIGKILL; host-0 ended with 42; not started again"
    )
    assert not any(map(is_there, job.pids()))


# What is left behind


@pytest.mark.slow
@pytest.mark.processes
def test_one_that_outlives_a_failure_is_asked_and_killed(launch):
    """Its exit code does not count: the job restarts because of the one that was killed."""
    job = launch(
        """
if starts == 2:
    sys.exit(0)
if me == 0:
    there("host-1 ready"), there("host-2 ready")
    os.kill(os.getpid(), signal.SIGKILL)
if me == 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark("host-2 ready")
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    mark("host-1 ready")
while True:
    signal.pause()
""",
        processes=3,
        noticing=0.0,
        margin=1.0,
    )
    code, lines = job.wait()
    assert code == 0
    assert said(lines) == [
        "host-1, host-2: still running after another ended, sent SIGTERM",
        "host-2: still running at the deadline, killed",
        "host-0 was killed by SIGKILL; starting again (2 of 3 failures left)",
    ]
    assert not any(map(is_there, job.pids()))


@pytest.mark.processes
def test_those_that_end_by_themselves_after_a_failure_are_left_alone(launch):
    code, lines = launch("""
if me == 0:
    there("host-1.start1")
    sys.exit(45)
there("host-0.start1")
while os.path.exists(f"/proc/{(folder / 'host-0.start1').read_text().split()[0]}"):
    time.sleep(0.01)
sys.exit(45)
""").wait()
    assert code == 45
    assert said(lines) == ["host-0, host-1 ended with 45; not started again"]


@pytest.mark.parametrize("state", ["at work", "ignores SIGTERM", "stopped"])
@pytest.mark.processes
def test_no_process_outlives_a_launcher_that_is_killed(launch, state):
    job = launch(f"""
if {state!r} == "ignores SIGTERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark(f"{{host}} ready")
if {state!r} == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
""")
    job.until("host-0 ready", "host-1 ready")
    assert all(map(is_there, job.pids()))
    job.process.kill()
    until(lambda: not any(map(is_there, job.pids())))


@pytest.mark.processes
def test_what_a_process_started_ends_with_it_and_holds_nothing_up(launch):
    """Its children inherit its pipes, which therefore never close."""
    job = launch(
        """
own = subprocess.Popen(["sleep", "600"])
free = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(own.pid, free.pid)
os._exit(0)
""",
        processes=1,
    )
    code, lines = job.wait()
    own, free = map(int, of("host-0", lines)[0].split())
    try:
        assert code == 0
        until(lambda: not is_there(own))
    finally:
        for pid in filter(is_there, (own, free)):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("option", ["SO_REUSEADDR", "SO_REUSEPORT"])
@pytest.mark.processes
def test_nobody_but_process_0_is_given_the_port_of_the_job(launch, option):
    code, lines = launch(f"""
address, port = place["coordinator"].split(":")
if me == 0:
    with socket.socket() as other:
        try:
            other.bind((address, int(port)))
        except OSError as error:
            print(os.strerror(error.errno))
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.{option}, 1)
    server.bind((address, int(port)))
    server.listen()
    mark("listens")
    server.accept()[0].sendall(b"hello")
else:
    there("listens")
    print(socket.create_connection((address, int(port))).recv(5).decode())
""").wait()
    assert code == 0
    assert of("host-0", lines) == [b"Address already in use"]
    assert of("host-1", lines) == [b"hello"]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_after_the_end_does_not_replace_the_exit_code(tmp_path, name):
    """A scheduler that sends another one while the launcher ends must see 42, not -15."""
    program = f"""
import os, signal, sys
from bert_jax.launch.local import run
from bert_jax.launch.restarts import Limits
ask = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
code = run([sys.executable, "-S", "-c", ask], 1, Limits())
os.kill(os.getpid(), signal.{name})
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 42, done.stderr
