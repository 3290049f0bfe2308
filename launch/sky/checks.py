"""Checks of a job on rented machines: what SkyPilot would refuse, and what this machine lacks."""

import contextlib
import dataclasses
import functools
import os
import re

from bert_jax.errors import UserError
from bert_jax.hardware import gpus
from bert_jax.launch import programs
from bert_jax.launch.job import Job
from bert_jax.launch.preflight import Check, CheckFailedError, check_version
from bert_jax.launch.sky.task import gpu_words, of_a_node, tpu_slice

_VERSION = (0, 14)  # of the schema that tests check the task with
# Names of `compile` and of JAX that no cloud has there; H100-SXM, which is one of ours, some have.
_NOT_THERE = re.compile(
    "(nvidia|tesla|geforce)-.*|a100-(40gb?|80g|sxm4-.*)|h100-80g|rtx-4090|rtx-a6000",
    re.IGNORECASE,
)
_CLOUDS = (
    "aws|azure|gcp|ibm|lambda|scp|oci|runpod|vast|vsphere|cudo|fluidstack|paperspace|"
    "primeintellect|do|nebius|ssh|slurm|hyperbolic|seeweb|shadeform|yotta|mithril|verda"
)
# As its schema has it.
_INFRA = re.compile(rf"({_CLOUDS}|\*)(/[^/]+){{0,2}}|(kubernetes|k8s)(/.+)?", re.IGNORECASE)


def refuse(job: Job, accelerators: str, num_nodes: int, infra: str) -> None:
    """Raises UserError if SkyPilot would refuse the job; the arguments are as `backend.Sky`."""
    _refuse_accelerators(accelerators)
    if infra and not _INFRA.fullmatch(infra):
        raise UserError(
            f"--infra={infra}: give a cloud of SkyPilot, such as gcp, gcp/us-central1 or "
            "gcp/us-central1/us-central1-a"
        )
    if "---" in job.name:
        near = re.sub("-{3,}", "--", job.name)
        line = "SkyPilot takes at most two dashes in a row"
        raise UserError(f"--name={job.name}: {line}; give {near}")
    if num_nodes < 1:
        raise UserError(f"--num_nodes={num_nodes}: give at least 1")
    tpu = tpu_slice(accelerators)
    if tpu and (hosts := tpu.hosts * num_nodes * of_a_node(accelerators)) > 1:
        other = "use bert-jax launch tpu run or bert-jax launch gke run"
        raise UserError(f"--accelerators={accelerators}: TPUs of {hosts} hosts; {other}")
    _refuse_variables(job)


def _refuse_accelerators(accelerators: str) -> None:
    flag = f"--accelerators={accelerators}"
    if not re.fullmatch("[A-Za-z0-9_.-]+(:[1-9][0-9]*)?", accelerators):
        raise UserError(f"{flag}: give a name and how many each node has, such as H100:8")
    name = accelerators.partition(":")[0]
    if why := gpus.why_dropped(name):
        raise UserError(f"--accelerators={why}")
    with contextlib.suppress(ValueError):  # a name of compile: H100 is none, h100-8 is
        if _NOT_THERE.fullmatch(name):
            one = gpus.find(f"{name}-1")
            found = dataclasses.replace(one, per_host=of_a_node(accelerators))
        else:
            found = gpus.find(name)
        raise UserError(f"{flag}: give {gpu_words(found)}, as SkyPilot names it")


def _refuse_variables(job: Job) -> None:
    for kind, variables in (("env", job.env), ("env_from", job.env_from)):
        for name in (name for name, _ in variables if name.startswith("SKYPILOT_")):
            line = "SkyPilot sets its variables itself; leave it out"
            raise UserError(f"--{kind}={name}=…: {line}")
    for name, reference in job.env_from:
        if reference != name:
            why = "SkyPilot takes a secret from the variable of its name"
            raise UserError(f"--env_from={name}={reference}: give {name}={name}: {why}")


def sky_checks(job: Job) -> list[Check]:
    secrets = (
        Check(f"secret {name}", functools.partial(_secret, name)) for name, _ in job.env_from
    )
    return [Check("sky", check_sky), *secrets]


def check_sky() -> str:
    """Returns the version of SkyPilot; CheckFailedError if it is too old."""
    printed = programs.call(["sky", "--version"]).strip()
    check_version(printed, _VERSION, "install skypilot")
    return printed


def _secret(name: str) -> str:
    if not os.environ.get(name):
        raise CheckFailedError(f"{name} is not set", f"export {name}, which SkyPilot passes on")
    return f"{name} is set"
