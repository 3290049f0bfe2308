"""Checks before queued resources are requested, made with gcloud."""

import json
import re
import shlex
from collections.abc import Sequence
from functools import partial

from bert_jax.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.job import Job
from bert_jax.launch.preflight import Check, CheckFailedError, no_version
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.tpu.queued_resources import QueuedResources, api_error

_OLDEST = 440  # version of gcloud: the first with queued-resources create --spot
_ZONES = 6  # zones shown that have a type
_BUCKET_FORMAT = "--format=value(location,location_type)"
_SECRET = re.compile(r"[\w-]+|projects/[^/\s]+/secrets/[\w-]+/versions/[\w-]+", re.ASCII)
_DELETERS = ("roles/owner", "roles/editor", "roles/tpu.admin")


def tpu_checks(
    job: Job, api: QueuedResources, place: Sequence[str], zone: str, kind: str, account: str
) -> list[Check]:
    """Returns the checks of a job.

    place: flags for zone and project. kind: accelerator type. account: of the machines, if given.
    """
    project = [flag for flag in place if flag.startswith("--project=")]
    return [
        Check("gcloud", check_gcloud),
        Check("login", check_login),
        Check("zone", partial(_zone, zone, kind, project)),
        Check("name", partial(_name, job.name, api)),
        Check("region", partial(_region, job.workdir, zone)),
        Check("give back", partial(_give_back, project, account)),
        *(Check(f"secret {name}", partial(_secret, of, project)) for name, of in job.env_from),
    ]


def check_references(env_from: Sequence[tuple[str, str]]) -> None:
    """Raises UserError for a reference that names no secret of Secret Manager."""
    for name, reference in env_from:
        if not _SECRET.fullmatch(reference):
            raise UserError(
                f"--env_from={name}={reference}: give a secret of Secret Manager, its name or "
                "projects/P/secrets/NAME/versions/V"
            )


def check_gcloud() -> str:
    """Returns the version of gcloud; CheckFailedError if it is too old."""
    printed = programs.call(["gcloud", "version", "--format=json"])
    try:
        version = json.loads(printed)["Google Cloud SDK"]
        number = int(version.split(".")[0])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise no_version(printed) from None
    if number < _OLDEST:
        remedy = f"needs {_OLDEST}: gcloud components update"
        raise CheckFailedError(f"gcloud {version}: too old", remedy)
    return f"gcloud {version}"


def check_login() -> str:
    """Returns the account that gcloud is logged in to; CheckFailedError if it is not."""
    try:
        programs.call(["gcloud", "auth", "print-access-token", "--quiet"])
    except ProgramError:
        raise CheckFailedError("gcloud: not logged in", "gcloud auth login") from None
    return _value("config", "get-value", "account") or "logged in"


def _zone(zone: str, kind: str, project: Sequence[str]) -> str:
    """Checks that a zone offers a type."""
    words = ["gcloud", "compute", "tpus", "accelerator-types", "list", *project]
    types = _names(programs.call([*words, f"--zone={zone}", "--format=value(name)"]))
    if kind in types:
        return f"{zone} offers {kind}"
    others = programs.call([*words, "--zone=-", f"--filter=type={kind}", "--format=value(name)"])
    zones = sorted(set(re.findall(r"locations/([\w-]+)/", others)))[:_ZONES]
    remedy = f"--zone=… of {', '.join(zones)}" if zones else "no zone does; choose another type"
    raise CheckFailedError(f"{zone} does not offer {kind}", remedy)


def _names(listing: str) -> set[str]:
    return {line.rpartition("/")[2] for line in listing.split()}


def _name(name: str, api: QueuedResources) -> str:
    found = api.list()
    left = f"; of earlier runs exist {len(found)}, which are deleted first" if found else ""
    return f"{name} is free{left}"


def _region(workdir: str, zone: str) -> str:
    """Says whether the bucket is near; one that is not is slow and costs, but works."""
    bucket, region = "/".join(workdir.split("/")[:3]), zone.rpartition("-")[0]
    try:
        words = ["gcloud", "storage", "buckets", "describe", bucket, _BUCKET_FORMAT]
        where = programs.call(words).split()
    except ProgramError as error:
        return f"{bucket}: location not known ({api_error(error)})"
    location = where[0].lower() if where else ""
    near = location == region or (len(location) == 2 and region.startswith(location))
    warning = "" if near else f"; WARNING: not in {region}, so reads are slow and are charged"
    return f"{bucket} is in {location}{warning}"


def _give_back(project: Sequence[str], account: str) -> str:
    """Says whether the machines may delete themselves at the end, as far as the project tells."""
    needed = "needs roles/tpu.admin, or this command must run at the end of the job"
    name = project[0].partition("=")[2] if project else default_project()
    try:
        email = account or _compute_account(name)
        words = ["projects", "get-iam-policy", name, "--flatten=bindings[].members"]
        member = f"--filter=bindings.members:serviceAccount:{email}"
        roles = _value(*words, member, "--format=value(bindings.role)").split()
    except ProgramError as error:
        return f"not known ({api_error(error)}); the account of the machines {needed}"
    if set(roles) & set(_DELETERS):
        return f"{email} may delete queued resources"
    # Custom roles have names like projects/P/roles/R. No role here: a folder or the organization
    # may grant one, which the policy of the project does not show.
    if custom := [role for role in roles if not role.startswith("roles/")]:
        return f"not known ({email} has {', '.join(custom)}); it {needed}"
    return f"WARNING: {email} has no role in {name} to delete queued resources; it {needed}"


def _secret(reference: str, project: Sequence[str]) -> str:
    """Checks that a secret has a value, as far as this account may see it."""
    name, words = reference, ["latest", f"--secret={reference}"]
    if "/" in reference:
        words, project = [reference], [f"--project={reference.split('/')[1]}"]
        name = reference.split("/")[3]
    about = [name, *project, "--data-file=FILE"]
    add = f"add a version: {shlex.join(['gcloud', 'secrets', 'versions', 'add', *about])}"
    try:
        state = _value(
            "secrets", "versions", "describe", *words, *project, "--format=value(state)"
        ).lower()
    except ProgramError as error:
        refused = api_error(error)
        if refused.name != "NOT_FOUND":
            return f"{reference}: not known ({refused})"
        make = shlex.join(["gcloud", "secrets", "create", *about])
        remedy = f"make it: {make}, or if only the version is missing, {add}"
        raise CheckFailedError(f"{reference}: {refused}", remedy) from None
    if state != "enabled":
        raise CheckFailedError(f"{reference}: is {state}", add)
    return f"{reference} is {state}"


def default_project() -> str:
    """Returns gcloud's own project, "" if it has none."""
    return _value("config", "get-value", "project")


def _compute_account(project: str) -> str:
    """Returns the default account of machines."""
    number = _value("projects", "describe", project, "--format=value(projectNumber)")
    return f"{number}-compute@developer.gserviceaccount.com"


def _value(*words: str) -> str:
    return programs.call(["gcloud", *words]).strip()
