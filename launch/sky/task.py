"""The SkyPilot task of a job, as data: what is rented, how a node is set up, what it runs."""

import math
import re
import shlex
from typing import Any

import yaml

from bert_jax.errors import UserError
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.hardware import slices
from bert_jax.hardware.gpus import GpuHosts
from bert_jax.launch.job import Job

_SETUP = """\
set -eu
cd ~/bert-jax
mkdir -p {name} && tar --extract --file={name}.tar --directory={name}
uv="$HOME/.local/bin/uv"  # SkyPilot's own
"$uv" venv --python=3.12 --clear python
export VIRTUAL_ENV="$PWD/python"
{install}
"""
_RUN = """\
set -eu
cd ~/bert-jax
{environment}
exec python/bin/python -P -m bert_jax.launch.sky.node {words}
"""


class _Dumper(yaml.SafeDumper):
    """Writes scripts line by line."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def task(
    job: Job, name: str, *, accelerators: str, num_nodes: int, use_spot: bool, infra: str
) -> str:
    """Returns the YAML file of a managed job.

    name: of the job in SkyPilot. The other arguments: as `backend.Sky`.
    """
    bundle, is_tpu = job.bundle.name, tpu_slice(accelerators) is not None
    wanted: dict[str, Any] = {"accelerators": accelerators, "use_spot": use_spot}
    if infra:
        wanted["infra"] = infra
    # As often as they come: `node` has the budgets, and ends the job with another code.
    codes = {"strategy": "FAILOVER", "recover_on_exit_codes": [STOPPED, LOST]}
    wanted["job_recovery"] = codes | {"max_restarts_on_errors": 0}
    found = {
        "name": name,
        "num_nodes": num_nodes,
        "resources": wanted,
        "file_mounts": {f"~/bert-jax/{bundle}.tar": f"./{bundle}.tar"},
        "setup": _SETUP.format(name=bundle, install=_install(job, is_tpu=is_tpu)),
        "run": _run(job, STOPPED if use_spot and num_nodes > 1 else LOST, is_tpu=is_tpu),
    }
    return yaml.dump(found, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def gpu_words(hosts: GpuHosts) -> str:
    """Returns the options that mean hosts with GPUs, such as H100:8 --num_nodes=4."""
    name = hosts.model.name.upper()
    name = {"A100-40G": "A100", "A100-80G": "A100-80GB", "A6000": "RTXA6000"}.get(name, name)
    nodes = f" --num_nodes={hosts.hosts}" if hosts.hosts > 1 else ""
    return f"{name}:{hosts.per_host}{nodes}"


def of_a_node(accelerators: str) -> int:
    """Returns the number of GPUs, or TPU slices, of each node: 8 of H100:8."""
    return int(accelerators.partition(":")[2] or 1)


def tpu_slice(accelerators: str) -> slices.Slice | None:
    """Returns a TPU slice by SkyPilot's name, such as tpu-v5litepod-8; None for GPUs."""
    name = accelerators.partition(":")[0].lower()  # SkyPilot takes either
    if not name.startswith("tpu-"):
        return None
    try:
        return slices.find(name)
    except ValueError as error:
        line = str(error)
        if not re.fullmatch(r"tpu-\w+-\d+", name):  # such as tpu-v6e-slice:4, GKE's name
            kind = "v5litepod" if "lite" in name else "v6e"
            line = f"give a TPU by SkyPilot's name, such as tpu-{kind}-4 or tpu-{kind}-8"
        raise UserError(f"--accelerators={accelerators}: {line}") from None


def _install(job: Job, *, is_tpu: bool) -> str:
    if not job.bundle.has_code:
        extra = "tpu" if is_tpu else "cuda"
        return f"\"$uv\" pip install 'bert-jax[{extra},gcs,finetune]=={job.bundle.version}'"
    lock = f"{job.bundle.name}/code/requirements/tpu.txt"
    lines = [f'"$uv" pip install --require-hashes -r {lock}']
    if not is_tpu:  # the libraries of CUDA, which are not locked, for the jax that is
        lines += ['"$uv" pip uninstall libtpu', "\"$uv\" pip install 'jax[cuda13]'"]
    return "\n".join(lines)


def _run(job: Job, lost: int, *, is_tpu: bool) -> str:
    bundle, limits = job.bundle.name, job.limits
    # Without it JAX would run on the CPUs of a machine whose driver it refuses.
    variables = {} if is_tpu else {"JAX_PLATFORMS": "cuda,cpu"}
    variables |= {"PYTHONUNBUFFERED": "1", **dict(job.env)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if paths := job.bundle.python_path(f"$PWD/{bundle}"):
        lines.append(f'export PYTHONPATH="{":".join(paths)}"')
    budgets = (limits.max_preemptions, limits.max_failures)
    numbers = (*budgets, math.ceil(limits.grace), lost)
    command = ("python/bin/python", "-P", "-m", "bert_jax", *job.words(bundle))
    words = shlex.join([job.folder, *map(str, numbers), *command])
    return _RUN.format(environment="\n".join(lines), words=words)
