"""Where a run stands, from its folder alone: `bert-jax status`. Loads neither JAX nor Orbax."""

import dataclasses
import json
import time
from typing import Any

from etils import epath

from bert_jax import metrics, saved, terminal, workdir
from bert_jax.config import Config
from bert_jax.config_values import from_dict
from bert_jax.errors import UserError

_AT_LEAST = 60.0  # seconds without a record before a run is taken to be at rest


@dataclasses.dataclass(frozen=True)
class CheckpointStatus:
    step: int
    loss: float | None  # held-out, if it was evaluated when it was saved
    kept: list[str]  # why; without a reason it goes at the next save
    bytes: int


@dataclasses.dataclass(frozen=True)
class Status:
    """A run by its last record. Times are in seconds, ages at the moment of asking."""

    workdir: str
    step: int
    total_steps: int
    phase: int  # index in config.phases, of the last update
    phases: int
    phase_step: int  # updates of that phase
    phase_steps: int
    epochs: list[float]  # of each phase, so far
    finished: bool
    working: bool  # a process seems to be at it
    age: float | None  # of the last record
    seconds_left: float | None
    train: dict[str, Any] | None  # the last record of its kind
    eval: dict[str, Any] | None
    checkpoints: list[CheckpointStatus]
    bytes: int  # of the whole folder


def read(folder: epath.PathLike) -> Status:
    """The status of the run in a folder.

    Raises:
        UserError: there is no run in the folder.
    """
    path = epath.Path(folder)
    description = workdir.read(path)
    there = saved.list_saved(path)
    config = from_dict(description["config"], Config)
    # The latest written: a stretch that is being repeated after a crash may lie behind others.
    records = list(metrics.records(path / metrics.LOG))
    latest = {record["kind"]: record for record in records}
    stopped = bool(records) and records[-1]["kind"] == metrics.STOPPED
    train, held_out = latest.get("train"), latest.get("eval")
    step = max([one.step for one in there] + [record["step"] for record in latest.values()] + [0])
    phase, local = config.phase_at(max(step - 1, 0))
    done = local + (step > 0)
    ages = [time.time() - record["time"] for record in latest.values()]
    finished = any(one.step >= config.total_steps for one in there)
    interval = config.log_every_steps * train["step_seconds"] if train else 0.0
    why = saved.reasons(there, config.checkpoint, config.phase_ends)
    ends = [0, *config.phase_ends]
    return Status(
        workdir=str(folder),
        step=step,
        total_steps=config.total_steps,
        phase=phase,
        phases=len(config.phases),
        phase_step=done,
        phase_steps=config.phases[phase].steps,
        epochs=[
            min(max(step - first, 0), p.steps) * p.batch_size / rows
            for p, rows, first in zip(
                config.phases, description["data"]["rows_per_epoch"], ends, strict=False
            )
        ],
        finished=finished,
        working=not (finished or stopped)
        and bool(ages)
        and min(ages) < max(_AT_LEAST, 3 * interval),
        age=min(ages, default=None),
        seconds_left=metrics.seconds_left(config, step, train["step_seconds"]) if train else None,
        train=train,
        eval=held_out,
        checkpoints=[
            CheckpointStatus(one.step, one.loss, why[one.step], _bytes(path, one.step))
            for one in there
        ],
        bytes=_size(path),
    )


def render(status: Status) -> str:
    """The status as a person reads it."""
    share = status.step / status.total_steps
    lines = [f"{status.workdir}: step {status.step:,} of {status.total_steps:,} ({share:.1%})"]
    epochs = status.epochs[status.phase]
    in_phase = f"{epochs:.2f} epochs seen"
    if status.phases > 1:
        in_phase = (
            f"phase {status.phase + 1} of {status.phases}: step {status.phase_step:,} of "
            f"{status.phase_steps:,}, {in_phase} in it"
        )
    lines.append(in_phase)
    lines.append(_at_work(status))
    now = time.time()
    if status.train:
        record = status.train
        losses = ", ".join(
            f"{terminal.NAMES[name]} {record[f'{name}/loss']:.3f}"
            for name in terminal.measured(record)
        )
        lines.append(
            f"training at step {record['step']:,} ({_ago(now - record['time'])}): "
            f"loss {record['loss']:.3f} ({losses}), {record['tokens_per_second']:,.0f} tokens/s, "
            f"{record['step_seconds']:.3g} s a step"
        )
    if status.eval:
        record = status.eval
        lines.append(
            f"held-out at step {record['step']:,} ({_ago(now - record['time'])}): "
            f"{terminal.held_out(record)}"
        )
    lines.append(f"{_mb(status.bytes)} on disk, checkpoints:")
    rows = [
        (
            f"{one.step:,}",
            "-" if one.loss is None else f"{one.loss:.4f}",
            _mb(one.bytes),
            ", ".join(one.kept) or "goes at the next save",
        )
        for one in status.checkpoints
    ]
    if rows:
        lines.append(terminal.table(("step", "held-out loss", "size", "kept as"), rows))
    else:
        lines.append("none yet")
    return "\n".join(lines)


def as_json(status: Status) -> str:
    return json.dumps(dataclasses.asdict(status), indent=2)


def write_page(folder: epath.PathLike, path: epath.PathLike) -> None:
    """The run's curves beside what trivial predictions give, as one HTML file.

    The left-neighbour model is counted from the run's token store, and left out where the store
    cannot be read any more.

    Raises:
        UserError: the file cannot be written.
    """
    from bert_jax import report

    config = from_dict(workdir.read(epath.Path(folder))["config"], Config)
    page = report.Page(f"Run {epath.Path(folder).name}")
    report.add_training(page, epath.Path(folder), token_baselines=_bigram(config.data.store))
    try:
        page.save(epath.Path(path))
    except OSError as error:
        raise UserError(f"{path}: cannot write the page ({error.strerror})") from error


def _bigram(store: str) -> dict[str, float]:
    from data_pipeline.baselines import bigram_loss
    from data_pipeline.store import open_store

    try:
        return {"left neighbour (bigram)": bigram_loss(open_store(store, verify=False))}
    except UserError:
        return {}


def _at_work(status: Status) -> str:
    if status.finished:
        return "finished"
    if status.age is None:
        return "nothing recorded yet: it has just been started, or was stopped before its first log"
    left = f"about {terminal.clock(status.seconds_left or 0)} left"
    if status.working:
        return f"at work: last record {_ago(status.age)}, {left}"
    return (
        f"at rest: last record {_ago(status.age)}, so no process seems to be at work; {left} "
        "once the same `bert-jax pretrain` command is given again"
    )


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _mb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _bytes(folder: epath.Path, step: int) -> int:
    return _size(saved.folder_of(folder) / str(step))


def _size(path: epath.Path) -> int:
    """Bytes of all files below a folder; what goes away meanwhile does not count."""
    try:
        if path.is_dir():
            return sum(_size(below) for below in path.iterdir())
        return path.stat().length
    except OSError:
        return 0
