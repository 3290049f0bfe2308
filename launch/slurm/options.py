"""The options of sbatch that a user may add: not those that restarts, logs and `stop` rely on."""

import os
import re
from collections.abc import Mapping, Sequence

from bert_jax.errors import UserError

# Formats of sbatch's --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
# days-hours:minutes, days-hours:minutes:seconds (https://slurm.schedmd.com/sbatch.html).
_TIME = re.compile(
    r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?"
    r"|(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)|(?P<mins>\d+)(:(?P<secs>\d+))?",
    re.ASCII,
)
_UNLIMITED = ("infinite", "unlimited", "0")
_RESTARTS = "restarts rely on it"
_OURS = "it is set by the launcher"
_VARIABLES_ARE_OURS = "the processes need the variables of the launcher; give --env=NAME=VALUE"
_NOTHING = "nothing would be submitted"
_FLAG = "give it as a flag of its own, --{}=…"
_GPUS = "GPUs are counted by node; " + _FLAG.format("gpus_per_node")
_OWN_GPU = "each process chooses its GPU among all of its node; " + _FLAG.format("gpus_per_node")
# Options, with the reason or what to give in their place.
_REFUSED = {
    "requeue": _RESTARTS, "no-requeue": _RESTARTS, "signal": _RESTARTS, "no-kill": _RESTARTS,
    "dependency": "it is singleton, so that two jobs never write to one workdir",
    "array": "every element would be a job on the same workdir",
    "export": _VARIABLES_ARE_OURS, "export-file": _VARIABLES_ARE_OURS,
    "get-user-env": _VARIABLES_ARE_OURS,
    "wrap": "the batch script is the launcher's", "parsable": _OURS, "job-name": _OURS,
    "comment": "the job is found by it", "chdir": _OURS, "workdir": _OURS, "jobid": _OURS,
    "output": "`logs` reads WORKDIR/launch/NAME/log", "open-mode": "`logs` reads one file",
    "error": "`logs` reads WORKDIR/launch/NAME/log",
    **dict.fromkeys(
        ("ntasks", *(f"ntasks-per-{part}" for part in ("node", "gpu", "core", "socket", "tres")),
         "tasks-per-node"), _FLAG.format("tasks_per_node"),
    ),
    "nodes": _FLAG.format("nodes"), "gpus-per-node": _FLAG.format("gpus_per_node"),
    "gpus": _GPUS, "gpus-per-socket": _GPUS, "gpus-per-task": _OWN_GPU, "tres-per-task": _OWN_GPU,
    "gpu-bind": _OWN_GPU, "tres-bind": _OWN_GPU,
    "time-min": "Slurm may take it for the time limit; " + _FLAG.format("time"),
    "deadline": "Slurm would not restart the job after it",
    "hold": "the job would wait until it is released",
    "immediate": "the job would not wait for its nodes, nor be restarted",
    "quiet": "the number of the job is read from what sbatch prints",
    "time": _FLAG.format("time"), "partition": _FLAG.format("partition"),
    "account": _FLAG.format("account"),
    "cluster": "the job is looked for on this cluster", "uid": "the job is looked for as yours",
    "gid": "the files would be of another group than yours",
    "cluster-constraint": "the job is looked for on this cluster",
    "clusters": "the job is looked for on this cluster",
    "wait": "`run` watches the job", "test-only": "nothing would be submitted; give --dry_run",
    "help": _NOTHING, "usage": _NOTHING, "version": _NOTHING, "autocomplete": _NOTHING,
    "external": "the batch script would not run",
}  # fmt: skip
_GPU = re.compile(r"(^|,|/)gpu\b", re.IGNORECASE)  # in the list of --gres
# Variables that sbatch reads as such options; it prefers its command line, which has the others.
_VARIABLES = {
    "SBATCH_ARRAY_INX": "array", "SLURM_CLUSTERS": "clusters",
    **{
        f"SBATCH_{option.upper().replace('-', '_')}": option
        for option in (
            "clusters", "cluster-constraint", "get-user-env", "error", "export", "gpus", "gpu-bind",
            "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-bind", "tres-per-task",
            "no-kill", "wait",
        )
    },
}  # fmt: skip


def check_words(words: Sequence[str]) -> None:
    """Raises UserError for an option of sbatch that the launcher needs, also in short."""
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise UserError(f"--sbatch={word}: give an option of sbatch, such as --qos=high")
        reason = _REFUSED.get(name, _NOTHING if value == "help" else "")
        if "gres".startswith(name) and _GPU.search(value):
            reason = _GPUS
        if reason:
            raise UserError(f"--sbatch={word}: cannot be given: {reason}")
        # sbatch takes the beginning of a name for the name.
        if found := [full for full in _REFUSED if full.startswith(name)]:
            raise UserError(
                f"--sbatch={word}: write the option in full; sbatch may take it for "
                f"--{found[0]}, which cannot be given: {_REFUSED[found[0]]}"
            )


def check_variables(env: Mapping[str, str] = os.environ) -> str:
    """Returns a line on what sbatch finds in the environment; UserError as `check_words`."""
    for name, option in _VARIABLES.items():
        if env.get(name):
            raise UserError(
                f"{name}={env[name]}: sbatch takes it for --{option}; unset it: {_REFUSED[option]}"
            )
    if _GPU.search(env.get("SBATCH_GRES", "")):
        raise UserError(f"SBATCH_GRES={env['SBATCH_GRES']}: unset it: {_GPUS}")
    return "no variable changes what is submitted"


def check_time(text: str, needed: float) -> None:
    """Raises UserError for a time limit in no format of sbatch's, or too short to save in.

    needed: seconds between the request to save and the end.
    """
    if text.lower() in _UNLIMITED or not text:
        return
    match = _TIME.fullmatch(text)
    if match is None:
        raise UserError(
            f"--time={text}: give minutes, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, "
            "DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS"
        )
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    hours = 24 * part["d"] + part["h"] + part["hours"]
    minutes = 60 * hours + part["m"] + part["minutes"] + part["mins"]
    seconds = 60 * minutes + part["s"] + part["seconds"] + part["secs"]
    if seconds <= needed:
        raise UserError(
            f"--time={text}: {seconds} s; the processes are asked to save {needed:.0f} s before "
            "the limit (--grace and 15 more); give more"
        )
