"""The agent of one host: installs, starts the job's process in each attempt, reports, leaves.

A single loop looks at everything every two seconds and never waits for anything longer, but for the
installation. The bucket may fail at any time; the process then runs on, and the loop tries again.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from types import FrameType

from bert_jax.launch.process import Process
from bert_jax.launch.tpu.agent.coordinator import Coordinator, Events
from bert_jax.launch.tpu.agent.devices import free_devices
from bert_jax.launch.tpu.agent.install import Installer, InstallError, unpack_bundle
from bert_jax.launch.tpu.agent.logs import LogFile
from bert_jax.launch.tpu.agent.machine import Machine, MachineError, Place
from bert_jax.launch.tpu.bucket import BucketError
from bert_jax.launch.tpu.history import GONE, INSTALLING, READY, RUNNING, HostState, Plan, used
from bert_jax.launch.tpu.job_records import Records
from bert_jax.launch.tpu.submission import Submission, at_root
from bert_jax.storage.host_name import HOST_VARIABLE

_TICK = 2.0  # seconds between two looks
_REPORT = 15.0  # seconds between two reports of the same
_INSTALLS = 3  # attempts to install
_LAST_LINES = 30.0  # seconds that host 0 waits for the others' output, at the end
_DELETES = 5  # attempts of host 0 to delete the queued resource
_FAILED = 1  # exit code of a job that cannot be installed or started
# Of an earlier slice these make libtpu wait for hosts that are gone; it finds its own.
_STALE = "MEGASCALE_"


class Host:
    """One host of queued resource `number`, at `place` among the hosts of the job."""

    def __init__(
        self,
        machine: Machine,
        place: Place,
        records: Records,
        submission: Submission,
        number: int,
        name: str,
        home: Path,
    ):
        """name: of the queued resource. home: folder for everything of this agent."""
        self._machine, self._place, self._records = machine, place, records
        self._submission, self._number, self._name, self._home = submission, number, name, home
        self._state = HostState(boot=uuid.uuid4().hex[:12], stage=INSTALLING)
        self._reported: tuple[HostState | None, float] = (None, 0.0)  # the last report, and when
        self._python: Path | None = None
        self._root = Path()
        self._installs = 0
        self._process: Process | None = None
        self._was_told = False  # the process, to stop
        self._was_asked, self._is_leaving = False, False  # to stop: by the user, by the machine
        self._own_log = self._log_file(0)
        self._log = self._own_log
        self._coordinator: Coordinator | None = None
        self._planned = Plan()  # what is in the bucket, of host 0

    def run(self) -> None:
        """Works until the job has ended or the machine is about to go."""
        signal.signal(signal.SIGTERM, self._on_signal)
        self.say(f"host {self._place.index} of {self._place.hosts}, agent {self._state.boot}")
        while True:
            try:
                if self._step():
                    return
            except (BucketError, MachineError) as error:
                self.say(str(error))
            time.sleep(_TICK)

    def say(self, line: str) -> None:
        """Writes a line of the agent to its log and the system's journal."""
        text = f"{time.strftime('%H:%M:%S')} agent | {line}\n"
        print(text, end="", file=sys.stderr, flush=True)
        with self._own_log.path.open("a") as file:
            file.write(text)

    def _step(self) -> bool:
        """Looks at everything once; returns whether to end."""
        if self._python is None:
            self._report()
            self._install()
        if self._is_given_up():
            self.say("a launcher has given these machines up; releasing them")
            self._own_log.copy(all=True)
            self._give_back()
            return True
        plan = self._plan()
        self._follow(plan)
        self._watch_process()
        self._log.copy()
        self._own_log.copy()
        self._report()
        if plan.final and not self._process:
            return self._leave(plan)
        if self._is_leaving and not self._process:
            self._log.copy(all=True)
            self._plan()
            return True
        return False

    def _install(self) -> None:
        log = self._own_log.open()
        try:
            self._root = unpack_bundle(self._records.bucket, self._submission.bundle, self._home)
            requirements = self._root / "code" / "requirements" / "tpu.txt"
            installer = Installer(self._home, log, self.say)
            self._python = installer.environment(requirements, self._submission.version)
            self._state = dataclasses.replace(self._state, stage=READY, line="")
        except (InstallError, OSError) as error:
            self._installs += 1
            self.say(f"attempt {self._installs} of {_INSTALLS} to install: {error}")
            code = _FAILED if self._installs >= _INSTALLS else None
            self._state = dataclasses.replace(self._state, line=str(error), code=code)
        finally:
            os.close(log)

    def _is_given_up(self) -> bool:
        """Returns whether host 0 is to start no attempt: a launcher requests other machines, or
        has.

        Two queued resources exist if the request of a launcher was late.
        """
        is_idle = self._place.index == 0 and not self._planned.is_running and not self._process
        return is_idle and self._records.is_retired(self._number)

    def _plan(self) -> Plan:
        """Returns the plan of host 0; host 0 itself advances it."""
        if self._place.index:
            return self._records.plan(self._number)
        if self._coordinator is None:
            self._planned = self._records.plan(self._number)
            self._coordinator = Coordinator(
                self._place.hosts,
                self._planned,
                used(self._records.snapshot().histories),
                self._submission.limits,
                time.monotonic(),
            )
        before = self._coordinator.plan
        # A launcher that gives a job up records its end, and may die before it deletes machines.
        marks = map(self._records.is_marked, ("stop", "end"))
        self._was_asked = self._was_asked or any(marks)
        events = Events(stopping=self._was_asked, leaving=self._is_leaving)
        hosts = self._records.hosts(self._number)
        self._coordinator.advance(hosts, events, time.monotonic())
        plan = self._coordinator.plan
        for attempt in plan.attempts[len(before.attempts) - before.is_running :]:
            if attempt.code is not None:
                self.say(attempt.why)
        if plan != self._planned:  # also if the bucket did not take it the last time
            self._records.set_plan(self._number, plan)
            self._planned = plan
        return plan

    def _follow(self, plan: Plan) -> None:
        """Does what the plan says: starts, stops or kills the process."""
        number = len(plan.attempts)
        if plan.is_running and number > self._state.attempt:
            boots = plan.attempts[-1].boots
            if boots and boots[self._place.index] == self._state.boot:
                self._start(number)
        if self._process and (plan.kill == self._state.attempt or plan.final):
            self.say("the process is still running at the deadline, killed")
            self._process.kill()
        elif self._was_asked or self._is_leaving:
            self._stop_process()

    def _start(self, number: int) -> None:
        self._log.copy(all=True)
        self._log = self._log_file(number)
        self._state = dataclasses.replace(
            self._state, stage=RUNNING, attempt=number, code=None, line=""
        )
        for holder in free_devices():
            self.say(holder)
        log = self._log.open()
        try:
            self._was_told = False
            self._process = Process(self._words(), self._variables(), out=log, err=log)
            self.say(f"attempt {number}: process {self._process.pid}")
        except (OSError, MachineError) as error:
            self.say(f"attempt {number}: {error}")
            self._state = dataclasses.replace(self._state, code=_FAILED, line=str(error))
        finally:
            os.close(log)

    def _words(self) -> list[str]:
        words = [at_root(word, str(self._root)) for word in self._submission.words]
        return [
            *(str(self._python), "-m", "bert_jax", *words),
            f"--coordinator={self._place.coordinator}",
            f"--num_processes={self._place.hosts}",
            f"--process_id={self._place.index}",
            f"--topology={self._submission.topology}",
        ]

    def _variables(self) -> dict[str, str]:
        path = [at_root(folder, str(self._root)) for folder in self._submission.python_path]
        return {
            **{name: text for name, text in os.environ.items() if not name.startswith(_STALE)},
            "GCE_METADATA_HOST": self._machine.server,  # where the process looks for notices
            **dict(self._submission.env),
            **{name: self._machine.secret(of) for name, of in self._submission.env_from},
            HOST_VARIABLE: f"host-{self._place.index}",
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
        }

    def _watch_process(self) -> None:
        """Notes how the process ended, after its output is in the bucket; without one, whether the
        machine is about to go, which a process notices itself."""
        if self._process is None:
            self._state = dataclasses.replace(self._state, leaving=self._machine.is_leaving())
        elif self._process.has_ended():
            self._log.copy(all=True)
            process, self._process = self._process, None  # which a signal could ask for
            leaving = self._machine.is_leaving()
            self._state = dataclasses.replace(self._state, code=process.close(), leaving=leaving)
        elif line := self._log.progress():
            self._state = dataclasses.replace(self._state, line=line)

    def _report(self) -> None:
        state, when = self._reported
        if state != self._state or time.monotonic() > when + _REPORT:
            self._records.set_host(self._number, self._place.index, self._state)
            self._reported = self._state, time.monotonic()

    def _leave(self, plan: Plan) -> bool:
        """Ends this host's part; host 0 then records the job's end and deletes the machines."""
        self._log.copy(all=True)
        self._own_log.copy(all=True)
        self._state = dataclasses.replace(self._state, stage=GONE)
        self._report()
        if self._place.index == 0 and plan.final:
            self._wait_for_others()
            self._records.set_end(plan.final)
            self._give_back()
        return True

    def _wait_for_others(self) -> None:
        until = time.monotonic() + _LAST_LINES
        while time.monotonic() < until:
            hosts = self._records.hosts(self._number)
            if sum(state.stage == GONE for state, _ in hosts.values()) == self._place.hosts:
                return
            time.sleep(_TICK)

    def _give_back(self) -> None:
        """Deletes the queued resource, in the name of the slice's service account."""
        for _ in range(_DELETES):
            try:
                self._machine.delete_resource(self._name)
                return
            except MachineError as error:
                self.say(f"the TPU is not released: {error}")
                self._state = dataclasses.replace(self._state, line=str(error))
                with contextlib.suppress(BucketError):
                    self._report()
                    self._own_log.copy(all=True)
                time.sleep(5 * _TICK)

    def _log_file(self, attempt: int) -> LogFile:
        """Returns the log of an attempt; 0 is the agent's own."""
        folder = self._records.log_folder(self._number, self._place.index)
        path = self._home / "logs" / f"{self._name}-{attempt:04d}.log"
        return LogFile(path, self._records.bucket, f"{folder}/{attempt:04d}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The machine shuts down: the process saves."""
        self._is_leaving = True
        self._stop_process()

    def _stop_process(self) -> None:
        """Tells the process once: as it exits, Python no longer handles a second signal."""
        if self._process and not self._was_told:
            self._was_told = True
            self._process.send(signal.SIGTERM)
