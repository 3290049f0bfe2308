"""The state of a run's optimizer beside its weights: moments and step, in optimizer.safetensors.

Arrays have the names and dtypes that they have in a checkpoint: `step`, the number of updates done,
and those of the optimizer, such as opt/1/mu/encoder/embeddings/word. transformers ignores the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from flax import nnx

from bert_jax.checkpoint.fingerprint import by_path
from bert_jax.checkpoint.manager import known_run, read_own_meta, read_params, read_part
from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import ComputeConfig, Config
from bert_jax.convert import checksums
from bert_jax.convert.safetensors_file import read_metadata, read_tensors
from bert_jax.convert.weight_files import OPTIMIZER_FILE
from bert_jax.data_pipeline.settings import shown_name
from bert_jax.errors import UserError
from bert_jax.model.vector_layers import is_layer
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import declare, vocabulary_paths
from bert_jax.optimizers.adam import Moments
from bert_jax.optimizers.frozen import TRAINED, frozen_names
from bert_jax.optimizers.optimizer import make_optimizer, optimizer_of
from bert_jax.parallel.partition import param_axes
from bert_jax.training import skip_nonfinite
from bert_jax.workdir.layout import Workdir

OPTIMIZER: Final = "optimizer"  # key of its name in the file's metadata
_STEP = "step"
_AGAIN = "export it again"


@dataclass(frozen=True)
class OptimizerState:
    """Optimizer state: moments and step.

    Attributes:
        optimizer: `config.optimizer.name`.
        leaves: path in the state of a run -> array: "step", and all below "opt".
    """

    optimizer: str
    leaves: Mapping[str, np.ndarray]

    @property
    def step(self) -> int:
        """Updates done."""
        return int(self.leaves[_STEP])

    def without(self, part: str) -> "OptimizerState":
        """Returns the state without the moments of a head, but with those of its dense layers,
        which an export has."""
        kept = {
            path: x
            for path, x in self.leaves.items()
            if part not in (names := path.split("/")) or any(map(is_layer, names))
        }
        return OptimizerState(self.optimizer, kept)


def of_checkpoint(run: Workdir, step: int, *, padding: bool) -> OptimizerState:
    """Reads the state of a step; raises as `manager.load_params`.

    padding: with the rows that the vocabulary has only for the hardware.
    """
    meta = read_own_meta(run, step, known_run(run))
    config = config_of(meta)
    leaves = _leaves(step, read_part(run, meta, "opt", _shapes(config)))
    if not padding:
        paths = vocabulary_paths(config.model, learned_by(config))
        ends, size = tuple(f"/{'/'.join(path)}" for path in paths), config.model.vocab_size
        leaves = {path: x[:size] if path.endswith(ends) else x for path, x in leaves.items()}
    return OptimizerState(config.optimizer.name, leaves)


def average_of(run: Workdir, step: int, config: Config) -> dict[str, np.ndarray]:
    """Reads what a run has of a step beside its weights and moments, by path in the state: the
    counts of skipped updates and, if the run that continues it has one of the same decay, the
    average; errors as `manager.load_params`.
    """
    meta = read_own_meta(run, step, known_run(run))
    shapes = {name: jax.ShapeDtypeStruct((), np.int32) for name in skip_nonfinite.start()}
    found = {"nonfinite": read_part(run, meta, "nonfinite", shapes)}
    decay = config.optimizer.ema_decay
    if decay and config_of(meta).optimizer.ema_decay == decay:
        found["ema"] = read_params(run, meta, "ema")
    return {path: np.asarray(leaf) for path, leaf in by_path(found).items()}


def taken_average(
    given: Mapping[str, np.ndarray], taken: Mapping[str, Any], config: Config
) -> dict[str, np.ndarray]:
    """Returns what `average_of` gave without the average of parameters that the run does not take.

    Args:
        given: path in the state of a run -> array.
        taken: the parameters that the run takes of the model.

    Raises:
        UserError: the run continues an average, and has none of all its parameters.
    """
    known = by_path({"ema": taken}).keys()
    found = {path: x for path, x in given.items() if path in known or not path.startswith("ema/")}
    if not config.optimizer.ema_decay:
        return found
    _, params = declare(config.model, ComputeConfig.plain(), learned_by(config))
    if by_path({"ema": nnx.to_pure_dict(params)}).keys() - found.keys():
        raise UserError(
            f"config.init={config.init}: has no average of all weights with "
            f"config.optimizer.ema_decay={config.optimizer.ema_decay:g} to continue; give a run "
            "that has it, or set ema_decay=0 or config.init_optimizer=reset"
        )
    return found


def of_moments(mu: Any, nu: Any, step: int) -> OptimizerState:
    """Returns the state of BERT's Adam; mu, nu: trees like the parameters'."""
    adam = OptimizerConfig(name="bert_adamw")
    shapes = jax.eval_shape(make_optimizer(adam, axes=None).init, mu)
    opt = jax.tree.map(lambda _: Moments(mu, nu), shapes, is_leaf=lambda x: isinstance(x, Moments))
    return OptimizerState(adam.name, _leaves(step, opt))


def read_state(folder: Path) -> OptimizerState:
    """Reads the file in the folder of an export or an import.

    Raises:
        UserError: there is none, it is damaged or differs from SHA256SUMS, or was written by
            another program.
    """
    file, sums = folder / OPTIMIZER_FILE, checksums.read_checksums(folder)
    if not file.exists():
        raise UserError(
            f"{folder}: has no {OPTIMIZER_FILE}; import or export it with --optimizer_state, or "
            "set config.init_optimizer=reset"
        )
    with checksums.checked(folder, OPTIMIZER_FILE, sums):
        return _read(file)


def _read(file: Path) -> OptimizerState:
    name = read_metadata(file, _AGAIN).get(OPTIMIZER)
    leaves = read_tensors(file, _AGAIN)
    step = leaves.get(_STEP)
    if name is None or step is None or step.shape or step.dtype != np.int32 or step < 0:
        raise UserError(f"{file}: not the state of an optimizer of bert-jax; export it again")
    for path, leaf in leaves.items():
        if not np.isfinite(leaf.astype(np.float32)).all():
            raise UserError(
                f"{file}: {shown_name(path)} contains NaN or infinite values; export it again"
            )
    return OptimizerState(name, leaves)


def leaves_for_run(
    state: OptimizerState, params: Mapping[str, Any], config: Config, where: str
) -> dict[str, np.ndarray]:
    """Returns the leaves that a run takes with these parameters: the step, and all of theirs.

    Args:
        params: path in the state of a run -> array, with the shapes of the model.
        where: the model, for messages.

    Raises:
        UserError: it is the state of another optimizer, the run has no step after its, or an array
            is missing or of another shape.
    """
    _check_run(state, config, where)
    _check_frozen(state, config, where)
    leaves = {_STEP: state.leaves[_STEP]}
    for path, like in by_path({"opt": _shapes(config)}).items():
        of = [name for name in params if path.endswith(name.removeprefix("params"))]
        if like.shape and not of:  # the model has no such parameter
            continue
        given, shape = state.leaves.get(path), np.shape(params[max(of, key=len)]) if of else ()
        if given is None or given.shape != shape:
            found = "is missing" if given is None else f"has shape {list(given.shape)}"
            raise UserError(
                f"{where}: its optimizer state does not match its weights: {path} {found}, should "
                f"have {list(shape)}; export it again"
            )
        leaves[path] = given
    return leaves


def _check_run(state: OptimizerState, config: Config, where: str) -> None:
    wanted, reset = config.optimizer.name, "config.init_optimizer=reset"
    if state.optimizer != wanted:
        raise UserError(
            f"{where}: has the moments of {state.optimizer}, but the run trains with {wanted}; set "
            f"config.optimizer.name={state.optimizer}, or {reset}"
        )
    if state.step >= config.total_steps:
        raise UserError(
            f"{where}: is at step {state.step:,}, but config.phases have {config.total_steps:,} "
            f"steps, including the model's; raise config.phases[0].steps, or set {reset}"
        )


def _check_frozen(state: OptimizerState, config: Config, where: str) -> None:
    """Raises UserError if only one of both has moments of all parameters."""
    of_some = any(path.startswith(f"opt/inner_states/{TRAINED}/") for path in state.leaves)
    if bool(frozen_names(config)) != of_some:
        raise UserError(
            f"{where}: its optimizer has moments of {'some' if of_some else 'all'} of its "
            f"parameters, that of the run of {'all' if of_some else 'some'}; set "
            "config.optimizer.frozen as there, or config.init_optimizer=reset"
        )


def _shapes(config: Config) -> Any:
    """Returns the optimizer's state of a run as ShapeDtypeStructs."""
    _, params = declare(config.model, ComputeConfig.plain(), learned_by(config))
    optimizer = optimizer_of(config, param_axes(params))
    return jax.eval_shape(optimizer.init, nnx.to_pure_dict(params))


def _leaves(step: int, opt: Any) -> dict[str, np.ndarray]:
    leaves = {path: np.asarray(leaf) for path, leaf in by_path({"opt": opt}).items()}
    return {_STEP: np.array(step, np.int32), **leaves}
