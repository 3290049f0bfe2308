"""Checkpoints of a run; the only module that imports Orbax.

    <workdir>/checkpoints/<step>/params, opt, meta

Parameters and optimizer state are separate items, so that export and use read only what they need.
The data state is the step itself. `meta` is JSON: format version, step, phase of the last update,
the held-out figures if the step was evaluated, and the run's description. The state at the end of a
phase is saved as that phase left it; what the next phase resets, it resets when it starts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from bert_jax import heads
from bert_jax.config import CheckpointConfig, ComputeConfig, DataConfig, ModelConfig
from bert_jax.config_values import from_dict
from bert_jax.errors import UserError
from bert_jax.saved import (
    FORMAT_VERSION,
    Saved,
    best_by_phase,
    complete_steps,
    folder_of,
    list_saved,
    read_meta,
    reasons,
)
from bert_jax.step import State


class _WithReason(policies.PreservationPolicy):
    """Keeps what `saved.reasons` gives a reason for; Orbax asks at every save."""

    def __init__(self, saved: Sequence[Saved], config: CheckpointConfig, phase_ends: Sequence[int]):
        self._saved = {one.step: one for one in saved}
        self._config, self._phase_ends = config, phase_ends

    def add(self, saved: Saved) -> None:
        self._saved[saved.step] = saved

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: policies.PreservationContext
    ) -> list[bool]:
        del context
        there = [self._saved.get(info.step, Saved(info.step, None)) for info in checkpoints]
        why = reasons(there, self._config, self._phase_ends)
        return [bool(why[info.step]) for info in checkpoints]


class Checkpoints:
    """Saves in the background, keeps what the configuration asks for, restores the newest."""

    def __init__(
        self, workdir: epath.PathLike, config: CheckpointConfig, phase_ends: Sequence[int] = ()
    ):
        """phase_ends: updates done at the end of each phase; these checkpoints stay."""
        self._policy = _WithReason(list_saved(workdir), config, phase_ends)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            enable_async_checkpointing=True,
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(folder_of(workdir), options=options)

    def latest_step(self) -> int | None:
        """The newest complete step, None if there is none."""
        return self._manager.latest_step()

    def save(
        self,
        state: State,
        meta: Mapping[str, Any],
        *,
        phase: int = 0,
        evaluation: Mapping[str, float] | None = None,
    ) -> None:
        """Copies the state and writes it in the background; nothing to do if the step is there.

        Args:
            meta: the run's description.
            phase: of the last update.
            evaluation: held-out figures of this state, if it was evaluated.
        """
        step = int(state["step"])
        if step == self.latest_step():
            return
        self._policy.add(Saved(step, evaluation["loss"] if evaluation else None))
        about = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "phase": phase,
            "evaluation": dict(evaluation) if evaluation else None,
        }
        self._manager.save(
            step,
            args=ocp.args.Composite(
                **{name: ocp.args.StandardSave(state[name]) for name in _groups(state)},
                meta=ocp.args.JsonSave({**about, **meta}),
            ),
            force=True,  # the trainer decides when, not a policy of the manager
        )

    def restore(self, step: int, abstract: State) -> State:
        """The state of a step, laid out as `abstract` (ShapeDtypeStructs with shardings) says."""
        items = self._manager.restore(
            step,
            args=ocp.args.Composite(
                **{name: ocp.args.StandardRestore(abstract[name]) for name in _groups(abstract)}
            ),
        )
        at = jax.device_put(jax.numpy.int32(step), abstract["step"].sharding)
        return {"step": at, **{name: items[name] for name in _groups(abstract)}}

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def _groups(state: State) -> list[str]:
    """The parts of a state that are saved as arrays; the step is the folder's name."""
    return [name for name in state if name != "step"]


def find_step(workdir: epath.PathLike, step: int | Literal["best"] | None = None) -> int:
    """The step of a complete checkpoint: that one, the newest (None), or the best.

    The best has the lowest held-out loss of the last phase of which a checkpoint was evaluated.

    Raises:
        UserError: the workdir holds no such checkpoint.
    """
    steps = complete_steps(workdir)
    if not steps:
        raise UserError(f"{workdir}: no checkpoints there; give the --workdir of a pretraining run")
    if step is None:
        return steps[-1]
    if step == "best":
        phases = read_meta(workdir, steps[-1])["config"]["phases"]
        ends = [sum(p["steps"] for p in phases[: i + 1]) for i in range(len(phases))]
        best = best_by_phase(list_saved(workdir), ends)
        if not best:
            raise UserError(
                f"{workdir}: no checkpoint was evaluated when it was saved; give a step "
                f"({_names(steps)}), or evaluate them all with `bert-jax evaluate --all`"
            )
        return best[max(best)]
    if step not in steps:
        raise UserError(f"{workdir}: no checkpoint of step {step}; complete steps: {_names(steps)}")
    return step


def _names(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def load_params(
    workdir: epath.PathLike, step: int | Literal["best"] | None = None
) -> tuple[dict, dict[str, Any]]:
    """Parameters of a step (see `find_step`) as arrays on one device, and its `meta`.

    Raises:
        UserError: the workdir holds no such checkpoint, or one in another format.
    """
    step = find_step(workdir, step)
    meta = read_meta(workdir, step)
    model = from_dict(meta["config"]["model"], ModelConfig, "config.model")
    compute = from_dict(meta["config"]["compute"], ComputeConfig, "config.compute")
    objectives = from_dict(meta["config"]["data"], DataConfig, "config.data").objectives
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.eval_shape(
        lambda: heads.init_params(model, compute, objectives, jax.random.key(0))
    )
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    with ocp.CheckpointManager(folder_of(workdir)) as manager:
        args = ocp.args.Composite(params=ocp.args.StandardRestore(target))
        return manager.restore(step, args=args)["params"], meta
