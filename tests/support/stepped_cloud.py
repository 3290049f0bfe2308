"""An API of queued resources whose every request is a step of a program, and may get lost."""

import dataclasses
from typing import Protocol

from stepped import Program, current, unstepped

from bert_jax.launch.tpu.agent.coordinator import Coordinator
from bert_jax.launch.tpu.bucket import BucketError
from bert_jax.launch.tpu.queued_resources import ApiError
from bert_jax.launch.tpu.reconcile import Resource, transient_code

NO_CAPACITY = "There is no more capacity in the zone"
STARTING = ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")


@dataclasses.dataclass
class Machines:
    """A queued resource, its host if that has booted, and what happened to it.

    of: run and id of the submission in whose name it was requested.
    """

    number: int
    state: str
    of: tuple[int, str]
    code: int = 0
    error: str = ""
    coordinator: Coordinator | None = None
    boot: str = ""
    silent_at: float = float("-inf")  # when it last was, before its host reported again
    preempted: bool = False  # which counts, unless it is given up as lost
    is_going: bool = False  # it has been DELETING for a while

    @property
    def is_training(self) -> bool:
        return bool(self.coordinator and self.coordinator.plan.is_running)

    @property
    def last_code(self) -> int | None:
        attempts = self.coordinator.plan.attempts if self.coordinator else ()
        return attempts[-1].code if attempts else None


class World(Protocol):
    """What exists, and what must hold when a launcher changes it."""

    machines: dict[int, Machines]
    is_full: bool

    def check_create(self, number: int, of: tuple[int, str]) -> None: ...

    def check_delete(self, machines: Machines) -> None: ...


class Cloud:
    """The API of queued resources for one launcher, which waits before each request."""

    def __init__(self, world: World, of: tuple[int, str] | None):
        self.world, self.of = world, of

    def list(self) -> list[Resource]:
        arrives("list")
        return [
            Resource(m.number, m.state, m.code, m.error, m.of[1])
            for _, m in sorted(self.world.machines.items())
        ]

    def create(self, number: int) -> None:
        assert self.of, "a command that ends a job requests machines"
        arrives("create")
        if self.world.is_full:
            raise ApiError(NO_CAPACITY, "RESOURCE_EXHAUSTED", transient_code("RESOURCE_EXHAUSTED"))
        if number not in self.world.machines:
            with unstepped():
                self.world.check_create(number, self.of)
            self.world.machines[number] = Machines(number, STARTING[0], self.of)
        answered()

    def delete(self, number: int) -> None:
        arrives("delete")
        if number in self.world.machines:
            with unstepped():
                self.world.check_delete(self.world.machines[number])
            self.world.machines[number].state = "DELETING"
        answered()


def arrives(at: str) -> None:
    """A program waits before a request, which may then get lost."""
    if program := current():
        program.pause(at)
        if program.fault == "before":
            fail(program, at)


def answered() -> None:
    """The answer to a request may get lost."""
    if (program := current()) and program.fault == "after":
        fail(program, program.at)


def fail(program: Program, at: str) -> None:
    program.fault = ""
    if at in ("list", "create", "delete"):
        raise ApiError("UNAVAILABLE: try again", "UNAVAILABLE", transient_code("UNAVAILABLE"))
    raise BucketError("503")
