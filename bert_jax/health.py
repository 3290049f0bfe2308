"""What can be said of a run's checkpoints without reading their arrays."""

import dataclasses

from etils import epath

from bert_jax import saved
from bert_jax.errors import UserError
from bert_jax.saved import Saved


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A checkpoint that was moved out of the way: its folder there, and why."""

    folder: str
    reason: str


def health(workdir: epath.PathLike) -> dict[int, str]:
    """Step -> what is wrong with its checkpoint; an empty text where nothing is."""
    return {step: _trouble(workdir, step) for step in _steps(saved.folder_of(workdir))}


def list_saved(workdir: epath.PathLike) -> list[Saved]:
    """All checkpoints that nothing seems to be wrong with, by step."""
    good = [step for step, trouble in health(workdir).items() if not trouble]
    return [saved.saved_of(saved.read_meta(workdir, step)) for step in good]


def list_quarantined(workdir: epath.PathLike) -> list[Quarantined]:
    """What was moved out of the way, by step."""
    return [Quarantined(f"{step}", "") for step in _steps(epath.Path(workdir) / "quarantine")]


def _steps(folder: epath.Path) -> list[int]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted({int(name) for name in names if name.isascii() and name.isdigit()})


def _trouble(workdir: epath.PathLike, step: int) -> str:
    if step not in saved.complete_steps(workdir):
        return "not complete"
    try:
        found = saved.saved_of(saved.read_meta(workdir, step))
    except UserError:
        return "it has another format"
    except (OSError, ValueError, KeyError, TypeError):
        return "its meta cannot be read"
    good = found.step == step and isinstance(found.loss, float | int | None)
    return "" if good else "its meta is not what was written"
