"""The facts about a run that its pages and its model card list."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from bert_jax.config.recorded import settings_of
from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.errors import count
from bert_jax.metrics.run_records import is_finite
from bert_jax.storage.hub import is_hub
from bert_jax.workdir.layout import split_step


def now() -> str:
    """Returns the time at which a page is written."""
    return time.strftime("%Y-%m-%d %H:%M (UTC)", time.gmtime())


def run_facts(
    run: Mapping[str, Any], step: int, records: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Returns name -> text of what is known about the first `step` updates of a run; older runs
    recorded less. run: its description, or the metadata of a checkpoint."""
    config, before = settings_of(run), steps_before(run)
    logged = [record for record in records if record["step"] <= step]
    times = [record["time"] for record in logged if is_finite(record.get("time"))]
    steps = steps_by_phase(config, step, before)
    tokens = tokens_seen(config, steps, logged)
    unit = "examples in rows" if config.task.name else "rows"
    facts = {
        "trained": "; ".join(
            f"{count(done, 'step')} of {phase.batch_size:,} {unit} of {phase.row_tokens} tokens"
            for phase, done in zip(config.phases, steps, strict=True)
            if done
        )
        or "not yet"
    }
    if origin := _origin(run, config):
        facts["started from"] = origin
    if before:
        facts["continues"] = f"{config.init}, at its step {before:,}, with its optimizer's moments"
    facts["method"] = _method(config)
    if tokens is not None:
        facts["tokens seen"] = f"about {float(f'{tokens:.3g}'):,.0f}, padding not counted"
    if times:
        began, ended = (time.gmtime(seconds) for seconds in (min(times), max(times)))
        same_day = began[:3] == ended[:3]
        until = time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", ended)
        facts["when"] = f"{time.strftime('%Y-%m-%d %H:%M', began)} to {until} (UTC)"
    if devices := run.get("devices"):
        size = math.prod(devices["mesh"].values())
        facts["devices"] = f"{count(size, 'device')} ({devices['kind']})"
    if versions := run.get("versions"):
        facts["software"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return facts


def _origin(run: Mapping[str, Any], config: Config) -> str:
    """Returns the model that a run starts from: its name on the hub, or of a task the name of its
    folder with the digest of its weights; "" if it starts from random ones."""
    if origin := run.get("init_origin"):
        return str(origin)
    if not (config.task.name and (digest := run["data"].get("init"))):
        return ""
    return f"{PurePath(config.init).name}, weights {digest[:12]}…"


def _own(name: str, phase: PhaseConfig) -> str:
    """Returns a phase's own values of `config.data` and of the model; "" if it has none."""
    own = dict(phase.own)
    for key in ("mask_rate_end", "global_rope_theta"):
        own |= {key: value} if (value := getattr(phase, key)) else {}
    values = ", ".join(f"{key}={value}" for key, value in own.items())
    return f"{name}: {values}" if own else ""


def _method(config: Config) -> str:
    data, task = config.data, config.task
    spans = [
        f"learning rate {span.learning_rate:g}, {count(span.warmup_steps, 'step')} of warmup"
        for span in config.schedule_spans
    ]
    # Phases with the same schedule are told once.
    spans = spans[:1] if len(set(spans)) == 1 else spans
    rates = f"{config.optimizer.name}, {', then '.join(spans)}"
    if not task.name:
        own = [_own(f"phase {i}", phase) for i, phase in enumerate(config.phases, 1)]
        read = f"pairing {data.pairing}, masking {data.masking}"
        return "; ".join(filter(None, [rates, _taught(config), read, *own]))
    limits = [(task.fewest_steps, "at least"), (task.most_steps, "at most")]
    is_whole = float(task.epochs).is_integer()
    epochs = count(int(task.epochs), "epoch") if is_whole else f"{task.epochs:g} epochs"
    epochs += "".join(f", {which} {count(steps, 'step')}" for steps, which in limits if steps)
    if task.teacher:
        epochs += f", taught by {_name(task.teacher)}" + (
            f" ({task.teacher_weight:g} of the loss, temperature {task.temperature:g})"
        )
    if task.layers:
        vectors = f"{task.join} of layers {task.layers}, {task.pooling} of the tokens"
        return f"{rates}; {epochs} of a linear head on a frozen encoder ({vectors})"
    by_layer = config.optimizer.layer_decay
    decay = f", layer decay {by_layer:g}" if by_layer != 1 else ""
    return f"{rates}{decay}; {epochs}"


def _taught(config: Config) -> str:
    """Returns the teacher of pretraining with the weights of the losses; "" if there is none."""
    if not config.teacher:
        return ""
    own = config.distillation
    return (
        f"taught by {_name(config.teacher)} ({own.kl_weight:g} · KL at temperature "
        f"{own.temperature:g}, {own.mlm_weight:g} · masked tokens, {own.cosine_weight:g} · cosine)"
    )


def _name(model: str) -> str:
    """Returns the name of the folder of a model, or its name on the Hugging Face hub."""
    return model if is_hub(model) else PurePath(split_step(model)[0]).name


def hosts(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the machines of the last start, if one was recorded. Not for a model card, which is
    published."""
    starts = [record for record in records if record["kind"] == "start" and "hosts" in record]
    return {"hosts": ", ".join(dict.fromkeys(starts[-1]["hosts"]))} if starts else {}


def model_facts(config: Config) -> str:
    """Returns the size of the model in one line."""
    model = config.model
    return (
        f"{count(model.num_hidden_layers, 'layer')}, {model.hidden_size} wide, "
        f"{count(model.num_attention_heads, 'head')}, vocabulary of {model.vocab_size:,}"
    )


def trained_length(config: Config, step: int) -> int:
    """Returns the tokens of the longest sequences in the phases of the first `step` updates."""
    phases = zip(config.phases, steps_by_phase(config, max(step, 1)), strict=True)
    return max(phase.seq_length for phase, steps in phases if steps)


def steps_before(run: Mapping[str, Any]) -> int:
    """Returns the updates that were done before a run, by the model that it continues.

    run: its description, or the metadata of a checkpoint.
    """
    return int(run["data"].get("init_step", 0))


def steps_by_phase(config: Config, step: int, before: int = 0) -> list[int]:
    """Returns how many of the updates from `before` to `step` are in each phase."""
    ends = zip(config.phases, config.phase_ends, strict=True)
    return [max(0, min(step, end) - max(before, end - phase.steps)) for phase, end in ends]


def tokens_seen(
    config: Config, steps: Sequence[int], logged: Iterable[Mapping[str, Any]]
) -> float | None:
    """Returns the tokens of these steps of each phase, by the recorded share of padding; None if
    a phase has no record of it, or counts examples."""
    if config.task.name:
        return None
    padding = {r["phase"]: r["padding"] for r in logged if r["kind"] == "train" and "padding" in r}
    if not all(index in padding for index, done in enumerate(steps) if done):
        return None
    return sum(
        done * phase.batch_size * phase.row_tokens * (1 - padding[index])
        for index, (phase, done) in enumerate(zip(config.phases, steps, strict=True))
        if done
    )
