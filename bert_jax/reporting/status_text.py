"""The status of a run as a person reads it."""

import time
from collections.abc import Callable, Iterator

from bert_jax.metrics import goodput
from bert_jax.metrics.records import measured
from bert_jax.reporting.status import Record, Status
from bert_jax.runtime import console
from bert_jax.training import progress

_MOST = 5  # attempts and skipped steps that are listed


def render(status: Status) -> str:
    """What `bert-jax status` prints."""
    share = status.step / status.total_steps
    lines = [f"{status.workdir}: step {status.step:,} of {status.total_steps:,} ({share:.1%})"]
    epochs = status.epochs[status.phase]
    in_phase = f"{epochs:.2f} epochs seen"
    if status.phases > 1:
        in_phase = (
            f"phase {status.phase + 1} of {status.phases}: step {status.phase_step:,} of "
            f"{status.phase_steps:,}, {in_phase} in it"
        )
    lines += [in_phase, _at_work(status)]
    lines += [*_figures(status), *_troubles(status), *_hosts(status), *_time(status)]
    lines += _checkpoints(status)
    return "\n".join(lines)


def _at_work(status: Status) -> str:
    if status.finished:
        return "finished"
    if status.age is None:
        if status.working:
            return "at work: nothing recorded yet"
        return "nothing recorded yet: it has just been started, or was stopped before its first log"
    left = "" if status.seconds_left is None else f"about {console.clock(status.seconds_left)} left"
    last = f"last record {_ago(status.age)}"
    if status.late:
        return f"at work, but {last}: it compiles or evaluates for long, or it hangs"
    if status.working:
        return ", ".join(filter(None, (f"at work: {last}", left)))
    words = f"at rest: {last}, so no process seems to be at work"
    if left:
        words += f"; {left} once the same `bert-jax pretrain` command is given again"
    return words


def _figures(status: Status) -> Iterator[str]:
    now = time.time()
    if status.train:
        yield _or_damaged("training", status.train, now, _training)
    if status.eval:
        yield _or_damaged("held-out", status.eval, now, progress.held_out)


def _or_damaged(what: str, record: Record, now: float, figures: Callable[[Record], str]) -> str:
    try:
        said = figures(record)
    except (KeyError, TypeError, ValueError):
        said = "its record in metrics.jsonl is damaged"
    return f"{what} at step {record['step']:,} ({_ago(now - record['time'])}): {said}"


def _training(record: Record) -> str:
    losses = ", ".join(f"{name.upper()} {record[f'{name}/loss']:.3f}" for name in measured(record))
    loss = f"loss {record['loss']:.3f} ({losses})" if losses else "no finite loss"
    return (
        f"{loss}, {record['tokens_per_second']:,.0f} tokens/s, "
        f"{record['step_seconds']:.3g} s a step"
    )


def _troubles(status: Status) -> Iterator[str]:
    if status.skipped:
        shown = ", ".join(map(str, status.skipped[-_MOST:]))
        more = "…, " if len(status.skipped) > _MOST else ""
        yield (
            f"{_count(len(status.skipped), 'step')} left out because loss or gradient was not "
            f"finite: {more}{shown} (`bert-jax data batch --step` shows what it saw)"
        )
    if status.save_failed:
        reason = status.save_failed.get("reason")
        yield f"saving failed at step {status.save_failed['step']:,}" + (
            f": {reason}" if isinstance(reason, str) else ""
        )
    yield from status.stragglers


def _hosts(status: Status) -> Iterator[str]:
    if len(status.hosts) > 1:
        yield "seconds of a step:"
        rows = [(f"{h.data_wait:.3g}", f"{h.own:.3g}", h.host) for h in status.hosts]
        yield console.table(("waiting for data", "not waiting for devices", "host"), rows)


def _time(status: Status) -> Iterator[str]:
    if status.goodput.wall:
        yield goodput.render(status.goodput)
    if status.attempts:
        left_out = len(status.attempts) - _MOST
        yield f"{_count(len(status.attempts), 'attempt')}" + (
            f", the last {_MOST}:" if left_out > 0 else ":"
        )
        rows = [
            (
                time.strftime("%Y-%m-%d %H:%M", time.localtime(one.began)),
                console.clock(one.seconds),
                "-" if one.processes is None else str(one.processes),
                f"{one.first:,} to {one.last:,}",
                one.ended,
            )
            for one in status.attempts[-_MOST:]
        ]
        yield console.table(("began", "for", "processes", "steps", "ended"), rows)


def _checkpoints(status: Status) -> Iterator[str]:
    yield f"{_mb(status.bytes)} on disk, checkpoints:"
    rows = [
        (
            f"{one.step:,}",
            "-" if one.loss is None else f"{one.loss:.4f}",
            _mb(one.bytes),
            "not usable" if one.problem else "good",
            one.problem or ", ".join(one.kept) or "goes at the next save",
        )
        for one in status.checkpoints
    ]
    if rows:
        yield console.table(
            ("step", "held-out loss", "size", "health", "kept as, or what is wrong"), rows
        )
    else:
        yield "none yet"
    for aside in status.quarantined:
        yield f"in quarantine: {aside.folder}" + (f" ({aside.reason})" if aside.reason else "")
    if not status.finished and not status.working:
        at = "the beginning" if status.restart_from is None else f"step {status.restart_from:,}"
        yield f"a restart goes on from {at}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _mb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
