"""The status of a run as text."""

import time
from collections.abc import Callable, Iterator, Sequence

from bert_jax.errors import count
from bert_jax.metrics import goodput, time_left
from bert_jax.metrics.run_records import is_finite, objectives_in
from bert_jax.reporting.status import Record, Status
from bert_jax.runtime import console
from bert_jax.storage.reader_errors import VALUE_ERRORS
from bert_jax.training import progress
from bert_jax.workdir.description import training_command

_MAX_LISTED = 5  # attempts and skipped steps that are listed
_NEAR = 30  # characters shown on each side of a hidden word


def render(status: Status) -> str:
    """Returns the text that `bert-jax status` prints."""
    share = status.step / status.total_steps
    lines = [f"{status.workdir}: step {status.step:,} of {status.total_steps:,} ({share:.1%})"]
    in_phase = f"{status.epochs[status.phase]:.2f} epochs seen"
    if status.phases > 1:
        in_phase = (
            f"phase {status.phase + 1} of {status.phases}: step {status.phase_step:,} of "
            f"{status.phase_steps:,}, {in_phase}"
        )
    lines += [in_phase, state(status)]
    for section in (_metrics, _cost, _fills, _problems, _hosts, _timing, _checkpoints):
        lines += section(status)
    return "\n".join(lines)


def state(status: Status) -> str:
    """Returns whether the run is running, and how long it still takes."""
    if status.finished:
        wall, budget = status.goodput.wall, status.time_budget
        return "finished" if budget is None else time_left.against_budget(wall, budget)
    if status.age is None:
        if status.working:
            return "running: nothing recorded yet"
        return "nothing recorded yet: it has just started, or was stopped before its first record"
    left = "" if status.seconds_left is None else f"about {console.clock(status.seconds_left)} left"
    last = f"last record {_ago(status.age)}"
    if status.late:
        return f"running, but {last}: a long compilation or evaluation, or it hangs"
    if status.working:
        return ", ".join(filter(None, (f"running: {last}", left)))
    words = f"not running: {last}"
    if left:
        command = training_command(status.task)
        words += f", {left}; run the same `{command}` command again to resume"
    return words


def _metrics(status: Status) -> Iterator[str]:
    now = time.time()
    if status.train:
        yield _metrics_line("training", status.train, now, _training)
    if status.eval:
        yield _metrics_line("held-out", status.eval, now, progress.held_out)


def _cost(status: Status) -> Iterator[str]:
    if spent := cost(status):
        yield f"cost so far: {spent}"


def cost(*runs: Status) -> str:
    """Returns what runs took together, as far as recorded: device hours and tokens."""
    hours = [run.device_hours for run in runs if run.device_hours]
    tokens = [run.tokens for run in runs if run.tokens]
    parts = [f"{sum(hours):,.2f} device hours"] if hours else []
    parts += [f"about {float(f'{sum(tokens):.3g}'):,.0f} tokens"] if tokens else []
    return ", ".join(parts)


def _fills(status: Status) -> Iterator[str]:
    if status.fills:
        yield f"words hidden in held-out sentences, guessed at step {status.fills[0].step:,}:"
        rows = [
            (
                one.word,
                ", ".join(f"{token} {probability:.0%}" for token, probability in one.guesses),
                f"{_end(one.before)}[MASK]{_start(one.after)}",
            )
            for one in status.fills
        ]
        yield console.table(("hidden word", "guesses", "sentence"), rows)


def _end(text: str) -> str:
    return text if len(text) <= _NEAR else f"…{text[-_NEAR:]}"


def _start(text: str) -> str:
    return text if len(text) <= _NEAR else f"{text[:_NEAR]}…"


def runs_table(runs: Sequence[Status]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Returns header and rows of a table of several runs, a row for each; empty where nothing is
    recorded."""
    header = (
        "run", "state", "step", "of", "training loss", "held-out loss", "learning rate",
        "tokens/s", "time left", "device hours", "tokens seen",
    )  # fmt: skip
    return header, [_of_run(name, run) for name, run in zip(names(runs), runs, strict=True)]


def names(runs: Sequence[Status]) -> list[str]:
    """Returns the end of each run's path that tells it from the others, such as `counted/0`; a
    number alone, which is a seed in an ablation, has its folder's name, too."""
    paths = [run.workdir.rstrip("/").split("/") for run in runs]

    def short(path: list[str]) -> str:
        for parts in range(1 + path[-1].isdecimal(), len(path)):
            end = path[-parts:]
            if sum(other[-parts:] == end for other in paths) == 1:
                return "/".join(end)
        return "/".join(path)

    return [*map(short, paths)]


def _of_run(name: str, run: Status) -> tuple[str, ...]:
    train, evaluated = run.train or {}, run.eval or {}
    state = "running" if run.working else "finished" if run.finished else "stopped"
    left = run.seconds_left if not run.finished else None
    return (
        name, "late" if run.late else state, f"{run.step:,}", f"{run.total_steps:,}",
        _number(train.get("loss"), ".3f"), _number(evaluated.get("loss"), ".3f"),
        _number(train.get("learning_rate"), ".3g"), _number(train.get("tokens_per_second"), ",.0f"),
        "" if left is None else console.clock(left),
        _number(run.device_hours, ",.2f"), _number(run.tokens, ",.0f", digits=3),
    )  # fmt: skip


def _number(value: object, form: str, digits: int = 0) -> str:
    """Returns a number as text, "" for one that is missing or not finite; digits: significant."""
    if not is_finite(value):
        return ""
    return f"{float(f'{value:.{digits}g}') if digits else value:{form}}"


def _metrics_line(
    what: str, record: Record, now: float, format_metrics: Callable[[Record], str]
) -> str:
    try:
        text = format_metrics(record)
    except VALUE_ERRORS:
        text = "its record in metrics.jsonl is damaged"
    return f"{what} at step {record['step']:,} ({_ago(now - record['time'])}): {text}"


def _training(record: Record) -> str:
    losses = [f"{name.upper()} {record[f'{name}/loss']:.3f}" for name in objectives_in(record)]
    loss = f"loss {record['loss']:.3f}" if losses else "no finite loss"
    if len(losses) > 1:  # one is the loss itself
        loss += f" ({', '.join(losses)})"
    speed = f"{record['tokens_per_second']:,.0f} tokens/s, {record['step_seconds']:.3g} s/step"
    return f"{loss}, {speed}"


def _problems(status: Status) -> Iterator[str]:
    if status.skipped:
        shown = ", ".join(map(str, status.skipped[-_MAX_LISTED:]))
        more = "…, " if len(status.skipped) > _MAX_LISTED else ""
        advice = "" if status.task else " (`bert-jax data batch --step` shows the batch)"
        yield (
            f"{count(len(status.skipped), 'step')} skipped, loss or gradient not finite: "
            f"{more}{shown}{advice}"
        )
    if status.save_failed:
        reason = status.save_failed.get("reason")
        yield f"checkpoint save failed at step {status.save_failed['step']:,}" + (
            f": {reason}" if isinstance(reason, str) else ""
        )
    yield from status.stragglers


def _hosts(status: Status) -> Iterator[str]:
    if len(status.hosts) > 1:
        yield "seconds per step:"
        rows = [(f"{h.data_wait:.3g}", f"{h.own:.3g}", h.host) for h in status.hosts]
        yield console.table(("waiting for data", "not waiting for devices", "host"), rows)


def _timing(status: Status) -> Iterator[str]:
    if status.goodput.wall:
        yield goodput.render(status.goodput)
    if status.attempts:
        hidden = len(status.attempts) - _MAX_LISTED
        yield f"{count(len(status.attempts), 'attempt')}" + (
            f", the last {_MAX_LISTED}:" if hidden > 0 else ":"
        )
        rows = [
            (
                time.strftime("%Y-%m-%d %H:%M", time.localtime(attempt.began)),
                console.clock(attempt.seconds),
                "-" if attempt.processes is None else str(attempt.processes),
                f"{attempt.first:,} to {attempt.last:,}",
                attempt.ended,
            )
            for attempt in status.attempts[-_MAX_LISTED:]
        ]
        yield console.table(("started", "duration", "processes", "steps", "end"), rows)


def _checkpoints(status: Status) -> Iterator[str]:
    yield f"{_mb(status.bytes)} on disk, checkpoints:"
    rows = [
        (
            f"{saved.step:,}",
            "-" if saved.loss is None else f"{saved.loss:.4f}",
            _mb(saved.bytes),
            "not usable" if saved.problem else "good",
            saved.problem or ", ".join(saved.kept) or "removed at the next save",
        )
        for saved in status.checkpoints
    ]
    if rows:
        yield console.table(
            ("step", "held-out loss", "size", "health", "retained as, or problem"), rows
        )
    else:
        yield "none yet"
    for aside in status.quarantined:
        yield f"in quarantine: {aside.folder}" + (f" ({aside.reason})" if aside.reason else "")
    if not status.finished and not status.working:
        at = "the beginning" if status.restart_from is None else f"step {status.restart_from:,}"
        yield f"a restart resumes from {at}"


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _mb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
