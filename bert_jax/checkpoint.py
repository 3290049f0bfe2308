"""Checkpoints of a run; the only module that imports Orbax.

    <workdir>/checkpoints/<step>/params, opt, meta

Parameters and optimizer state are separate items, so that export and use read only what they need.
The data state is the step itself. `meta` is JSON: format version, step, and the run's description.
"""

from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bert_jax import heads
from bert_jax.config import CheckpointConfig, ComputeConfig, DataConfig, ModelConfig
from bert_jax.config_values import from_dict
from bert_jax.errors import UserError
from bert_jax.step import State

FORMAT_VERSION = 1


class Checkpoints:
    """Saves in the background, keeps the newest few, restores the newest."""

    def __init__(self, workdir: epath.PathLike, config: CheckpointConfig):
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(config.keep),
            enable_async_checkpointing=True,
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(_folder(workdir), options=options)

    def latest_step(self) -> int | None:
        """The newest complete step, None if there is none."""
        return self._manager.latest_step()

    def save(self, state: State, meta: dict[str, Any]) -> None:
        """Copies the state and writes it in the background; nothing to do if the step is there."""
        step = int(state["step"])
        if step == self.latest_step():
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state["params"]),
                opt=ocp.args.StandardSave(state["opt"]),
                meta=ocp.args.JsonSave({"format_version": FORMAT_VERSION, "step": step, **meta}),
            ),
            force=True,  # the trainer decides when, not a policy of the manager
        )

    def restore(self, step: int, abstract: State) -> State:
        """The state of a step, laid out as `abstract` (ShapeDtypeStructs with shardings) says."""
        items = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract["params"]),
                opt=ocp.args.StandardRestore(abstract["opt"]),
            ),
        )
        at = jax.device_put(jax.numpy.int32(step), abstract["step"].sharding)
        return {"step": at, "params": items["params"], "opt": items["opt"]}

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def load_params(workdir: epath.PathLike, step: int | None = None) -> tuple[dict, dict[str, Any]]:
    """Parameters of a step (the newest by default) as arrays on one device, and its `meta`.

    Raises:
        UserError: the workdir holds no complete checkpoint, or not that step.
    """
    folder = _folder(workdir)
    if not folder.exists():
        raise UserError(f"{workdir}: no checkpoints there; give the --workdir of a pretraining run")
    with ocp.CheckpointManager(folder) as manager:
        steps = sorted(manager.all_steps())
        if not steps or (step is not None and step not in steps):
            have = ", ".join(map(str, steps)) or "none"
            raise UserError(f"{workdir}: no checkpoint of step {step}; complete steps: {have}")
        step = steps[-1] if step is None else step
        meta = manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
        model = from_dict(meta["config"]["model"], ModelConfig, "config.model")
        compute = from_dict(meta["config"]["compute"], ComputeConfig, "config.compute")
        learned = from_dict(meta["config"]["data"], DataConfig, "config.data").objectives
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        shapes = jax.eval_shape(
            lambda: heads.init_params(model, compute, learned, jax.random.key(0))
        )
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes
        )
        args = ocp.args.Composite(params=ocp.args.StandardRestore(target))
        return manager.restore(step, args=args)["params"], meta


def _folder(workdir: epath.PathLike) -> epath.Path:
    return epath.Path(workdir).resolve() / "checkpoints"
