"""`bert-jax status`: the state of a run, from its folder alone. Imports neither JAX nor Orbax."""

# Over 300 lines: one value, `Status`, and how each of its fields is found in the folder.

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.checkpoint.catalog import Quarantined, health, list_checkpoints, list_quarantined
from bert_jax.checkpoint.retention import reasons_to_keep
from bert_jax.config.recorded import settings_of
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.metrics import attempts, goodput
from bert_jax.metrics import run_records as metrics
from bert_jax.metrics.attempts import Attempt
from bert_jax.metrics.fill_records import last_guesses, read_fills
from bert_jax.metrics.goodput import Goodput
from bert_jax.metrics.run_records import is_finite
from bert_jax.metrics.time_left import seconds_left
from bert_jax.reporting.run_facts import steps_before, steps_by_phase, tokens_seen
from bert_jax.storage.reader_errors import VALUE_ERRORS
from bert_jax.storage.remote import is_remote, is_storage_error
from bert_jax.workdir import description, identity, lock
from bert_jax.workdir.layout import Workdir
from bert_jax.workdir.words_reached import steps_to_keep

_MIN_QUIET_SECONDS = 60.0  # seconds without a record before a run counts as not running

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class CheckpointStatus:
    step: int
    loss: float | None  # held-out loss, if evaluated when it was saved
    kept: list[str]  # why it is retained; if empty, the next save removes it
    bytes: int
    problem: str  # why a restart would not use it; empty: none found


@dataclasses.dataclass(frozen=True)
class AttemptStatus:
    """One start of the run."""

    first: int  # the step it resumed from
    last: int  # steps done when it ended, as far as recorded
    processes: int | None  # None in runs of earlier versions
    began: float  # seconds since the epoch
    seconds: float  # until its last record
    ended: str  # why; "running" while it is running


@dataclasses.dataclass(frozen=True)
class HostStatus:
    """Mean seconds per step, over the logging interval of the last "train" record."""

    host: str
    own: float  # host time: not waiting for its devices
    data_wait: float


@dataclasses.dataclass(frozen=True)
class FillStatus:
    """The last guesses for a word hidden in a held-out sentence."""

    step: int
    before: str
    word: str
    after: str
    guesses: list[tuple[str, float]]  # token and probability, descending


@dataclasses.dataclass(frozen=True)
class Status:
    """State of a run at its last record. Times are in seconds; ages are at the time of the call."""

    workdir: str
    task: str  # that it is fine-tuned for; "" for pretraining
    step: int
    total_steps: int
    phase: int  # index in config.phases, of the last update
    phases: int
    phase_step: int  # updates of that phase
    phase_steps: int
    epochs: list[float]  # of each phase, so far
    finished: bool
    time_budget: float | None  # in seconds; None for a run without one
    working: bool  # a process seems to be running
    late: bool  # running, but its last record is older than expected
    age: float | None  # of the last record
    seconds_left: float | None
    device_hours: float | None  # of all starts, idle time in them included; None if not recorded
    tokens: float | None  # seen, padding not counted; None if not recorded, or for a task
    train: Record | None  # the last record of its kind
    eval: Record | None
    fills: list[FillStatus]  # at the last step that has any
    goodput: Goodput
    attempts: list[AttemptStatus]
    skipped: list[int]  # steps whose updates were skipped, from 0, ascending
    save_failed: Record | None  # the last of its kind, if nothing was saved since
    hosts: list[HostStatus]
    stragglers: list[str]  # one line for each
    checkpoints: list[CheckpointStatus]
    quarantined: list[Quarantined]
    restart_from: int | None  # the step that the next start resumes from; None: the beginning
    bytes: int  # of the entire folder
    run: Record  # its config.json; not in the JSON, as the next
    logged: list[Record]  # its metrics.jsonl


def read_status(folder: epath.PathLike) -> Status:
    """Returns the status of the run in a folder; UserError if the folder holds no run, or its
    config.json is damaged."""
    workdir = Workdir.open(folder)
    run = description.read_description(workdir)
    config = settings_of(run)
    problems = health(workdir.checkpoints, lambda meta: identity.foreign_reason(meta, run))
    logged = [*metrics.records(workdir.metrics)]
    records = [r for r in logged if is_finite(r.get("time"))]
    history = attempts.split(records)
    lasting = metrics.lasting(records)
    # The latest written: steps repeated after a crash have records of lower steps after higher.
    latest = {record["kind"]: record for record in lasting}
    train, failed = latest.get("train"), latest.get("save_failed")
    speed = _finite(train.get("step_seconds") if train else None)
    good = [step for step, problem in problems.items() if not problem]
    step = max([steps_before(run), *good, *(attempt.last for attempt in history[-1:])])
    step = min(step, config.total_steps)
    phase, local = config.phase_at(max(step - 1, 0))
    finished = any(saved >= config.total_steps for saved in good)
    age = time.time() - max(r["time"] for r in records) if records else None
    quiet_limit = max(_MIN_QUIET_SECONDS, 3 * config.log_every_steps * (speed or 0.0))
    recent = age is not None and age < quiet_limit
    alive = age is not None and age < max(quiet_limit, config.deadlines.barrier)
    working = not finished and _is_running(workdir, history, alive)
    left = speed and seconds_left(config, step, speed, _step_flops(run, config))
    return Status(
        workdir=str(folder),
        task=config.task.name,
        step=step,
        total_steps=config.total_steps,
        phase=phase,
        phases=len(config.phases),
        phase_step=local + (step > 0),
        phase_steps=config.phases[phase].steps,
        epochs=_epochs(workdir, run, config, step),
        finished=finished,
        time_budget=run["time_budget"]["seconds"] if run.get("time_budget") else None,
        working=working,
        late=working and not recent and bool(records),
        age=age,
        seconds_left=_finite(left),
        device_hours=_device_hours(history, run),
        tokens=_tokens(run, config, step, records),
        train=train,
        fills=_last_fills(records),
        eval=latest.get("eval"),
        goodput=goodput.account(records),
        attempts=_attempts(history, working, finished),
        skipped=sorted({r["step"] for r in lasting if r["kind"] == "skipped"}),
        save_failed=failed if failed and not any(s >= failed["step"] for s in good) else None,
        hosts=_hosts(history, train),
        stragglers=_texts(train, "hosts/stragglers"),
        checkpoints=_checkpoints(workdir.checkpoints, config, problems, steps_to_keep(config, run)),
        quarantined=_quarantined(workdir.quarantine, records),
        restart_from=max(good, default=None),
        bytes=_size(workdir.path),
        run=run,
        logged=logged,
    )


def _finite(value: Any) -> float | None:
    return value if is_finite(value) else None


def _device_hours(history: Sequence[Attempt], run: Record) -> float | None:
    """The hours of each start times its devices; of earlier versions those of the last start."""
    mesh = run["devices"]["mesh"].values() if run.get("devices") else [0]
    recorded = [attempt.records[0].get("devices") for attempt in history]
    devices = [count if isinstance(count, int) else math.prod(mesh) for count in recorded]
    if not all(devices):
        return None
    pairs = zip(history, devices, strict=True)
    return sum(max(0.0, attempt.end - attempt.begin) * count for attempt, count in pairs) / 3600


def _tokens(run: Record, config: Config, step: int, records: Sequence[Record]) -> float | None:
    try:
        return tokens_seen(config, steps_by_phase(config, step, steps_before(run)), records)
    except VALUE_ERRORS:  # a damaged record
        return None


def _last_fills(records: Sequence[Record]) -> list[FillStatus]:
    last, filled = last_guesses(read_fills(records))
    return [FillStatus(last, one.before, one.word, one.after, one.by_step[last]) for one in filled]


def _attempts(history: Sequence[Attempt], working: bool, finished: bool) -> list[AttemptStatus]:
    """An attempt without an end of its own was killed, unless it is the last one."""
    ends = ["killed"] * len(history)
    if ends:
        ends[-1] = "running" if working else "finished" if finished else "killed"
    return [_attempt(attempt, end) for attempt, end in zip(history, ends, strict=True)]


def _step_flops(run: Record, config: Config) -> list[float]:
    """Operations of a step of each phase; the config.json of an earlier version lacks them."""
    recorded: list[float] = run.get("step_flops", [])
    if len(recorded) == len(config.phases):
        return recorded
    from bert_jax.metrics.flops import step_flops  # imports JAX, which takes a second

    return [step_flops(config, phase) for phase in config.phases]


def as_json(*runs: Status, unread: Mapping[str, UserError] | None = None) -> str:
    """All fields as JSON, of several runs a list; non-finite numbers become null.

    unread: folder -> why it could not be read, of further runs.
    """
    values: list[Record] = []
    for status in runs:
        fields = dataclasses.asdict(dataclasses.replace(status, run={}, logged=[]))
        del fields["run"], fields["logged"]
        fields["goodput"] |= {"wall": status.goodput.wall, "share": status.goodput.share}
        values.append(metrics.strict(fields))
    values += [{"workdir": name, "error": str(error)} for name, error in (unread or {}).items()]
    return json.dumps(values if len(values) > 1 else values[0], indent=2, allow_nan=False)


def _is_running(workdir: Workdir, history: Sequence[Attempt], alive: bool) -> bool:
    """Returns whether a trainer holds the lock; without a lock file, as in a bucket, whether it may
    be `alive` by the age of its last record, and has recorded no end: compiling, restoring and
    evaluating write no record, and are ended at their deadlines."""
    if not is_remote(workdir.lock) and workdir.lock.exists():
        locked = lock.is_locked(workdir.lock)
        if locked is not None:
            return locked
    return alive and bool(history) and history[-1].closing is None


def _attempt(attempt: Attempt, otherwise: str) -> AttemptStatus:
    """otherwise: why it ended, if no record of its end exists."""
    ended, closing = otherwise, attempt.closing
    if closing is not None:
        reason = closing.get("reason")
        ended = f"{closing['kind']}: {reason}" if isinstance(reason, str) else closing["kind"]
    processes = attempt.records[0].get("processes")
    return AttemptStatus(
        first=attempt.first,
        last=attempt.last,
        processes=processes if isinstance(processes, int) else None,
        began=attempt.begin,
        seconds=max(0.0, attempt.end - attempt.begin),
        ended=ended,
    )


def _epochs(workdir: Workdir, run: Record, config: Config, step: int) -> list[float]:
    try:
        rows = [float(count) for count in run["data"]["rows_per_epoch"]]
        done = steps_by_phase(config, step, steps_before(run))
        return [
            steps * phase.batch_size / count
            for phase, steps, count in zip(config.phases, done, rows, strict=True)
        ]
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        command = description.training_command(config.task.name)
        raise UserError(
            f"{workdir.config_json}: damaged, the number of rows per epoch is missing; "
            f"`{command}` with the run's own flags rewrites it"
        ) from None


def _checkpoints(
    folder: epath.Path,
    config: Config,
    problems: Mapping[int, str],
    at_words: Mapping[int, Sequence[int]],
) -> list[CheckpointStatus]:
    """problems: step -> its problem, empty if none."""
    usable = {c.step: c for c in list_checkpoints(folder) if not problems.get(c.step)}
    reasons = reasons_to_keep(list(usable.values()), config.checkpoint, config.phase_ends, at_words)
    return [
        CheckpointStatus(
            step=step,
            loss=usable[step].loss if step in usable else None,
            kept=reasons.get(step, []),
            bytes=_size(folder / str(step)),
            problem=problem,
        )
        for step, problem in problems.items()
        if problem or step in usable  # a checkpoint may have been removed in the meantime
    ]


def _quarantined(folder: epath.Path, records: Sequence[Record]) -> list[Quarantined]:
    """The checkpoints in quarantine; a missing reason is taken from the records."""
    recorded = {
        str(record["step"]): record["reason"]
        for record in records
        if record["kind"] == "quarantined" and isinstance(record.get("reason"), str)
    }
    return [
        dataclasses.replace(q, reason=q.reason or recorded.get(q.folder.partition("-")[0], ""))
        for q in list_quarantined(folder)
    ]


def _hosts(history: Sequence[Attempt], train: Record | None) -> list[HostStatus]:
    if not history or not train:
        return []
    names = _texts(history[-1].records[0], "hosts")
    columns = [train.get(f"hosts/{name}") for name in ("own", "data_wait")]
    own, wait = ([s for s in c if is_finite(s)] if isinstance(c, list) else [] for c in columns)
    if not len(names) == len(own) == len(wait):
        return []
    return [HostStatus(*host) for host in zip(names, own, wait, strict=True)]


def _texts(record: Record | None, name: str) -> list[str]:
    values = record.get(name) if record else None
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


def _size(path: epath.Path) -> int:
    """Bytes of all files below a folder; files removed in the meantime do not count."""
    try:
        if path.is_dir():
            return sum(_size(below) for below in path.iterdir())
        return path.stat().length
    except Exception as error:
        if not is_storage_error(error):
            raise
        return 0
