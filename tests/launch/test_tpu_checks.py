"""What a user may get wrong about TPU slices, one line each, before anything exists."""

import json
from collections.abc import Sequence

import pytest
from launch_jobs import job
from memory_bucket import MemoryBucket

from bert_jax.commands.command import parse
from bert_jax.commands.launch import COMMANDS
from bert_jax.errors import UsageError, UserError
from bert_jax.launch import programs
from bert_jax.launch.preflight import run_checks
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.tpu import backend
from bert_jax.launch.tpu.backend import Tpu
from bert_jax.launch.tpu.history import End
from bert_jax.launch.tpu.watch import Watcher

EMAIL = "123-compute@developer.gserviceaccount.com"
PATH = "projects/p/locations/{}/acceleratorTypes/{}"
# What gcloud prints in a project where everything is right, by the words of the command.
RIGHT = {
    "gcloud version": json.dumps({"Google Cloud SDK": "528.0.0"}),
    "gcloud auth print-access-token": "token\n",
    "gcloud config get-value account": "me@example.com\n",
    "gcloud config get-value project": "p\n",
    "gcloud compute tpus accelerator-types list --zone=us-west4-a": "\n".join(
        PATH.format("us-west4-a", kind) for kind in ("v5litepod-4", "v5litepod-16")
    ),
    "gcloud compute tpus accelerator-types list --zone=-": "",
    "gcloud compute tpus queued-resources list": "[]",
    "gcloud storage buckets describe": "US-WEST4\tregion\n",
    "gcloud projects describe": "123\n",
    "gcloud projects get-iam-policy": "roles/storage.objectAdmin\nroles/tpu.admin\n",
}


@pytest.fixture
def gcloud(monkeypatch):
    """What gcloud prints, which a test may change; an exception is raised."""
    prints: dict[str, object] = dict(RIGHT)

    def call(words: Sequence[str], **options: object) -> str:
        line = " ".join(words)
        (found,) = (value for start, value in prints.items() if line.startswith(start))
        if isinstance(found, Exception):
            raise found
        return str(found)

    monkeypatch.setattr(programs, "call", call)
    return prints


def said(env_from: Sequence[tuple[str, str]] = (), **options: object) -> list[str]:
    """The lines of all checks; raises what they raise."""
    lines: list[str] = []
    checks = Tpu(zone="us-west4-a", **options).checks(job("v5e-16", env_from=env_from))
    try:
        run_checks(checks, lines.append)
    except UserError as error:
        lines.append(str(error))
    return lines


def refused(reason: str) -> ProgramError:
    return ProgramError(["gcloud"], 1, f"ERROR: (gcloud.x) {reason}\n")


def test_a_job_whose_checks_pass(gcloud):
    assert said() == [
        "gcloud: gcloud 528.0.0",
        "login: me@example.com",
        "zone: us-west4-a offers v5litepod-16",
        "name: b1 is free",
        "region: gs://bucket is in us-west4",
        f"give back: {EMAIL} may delete queued resources",
    ]


@pytest.mark.parametrize(
    ("command", "prints", "line"),
    [
        (
            "gcloud version",
            json.dumps({"Google Cloud SDK": "410.0.0"}),
            "gcloud: gcloud 410.0.0: too old; needs 440: gcloud components update",
        ),
        (
            "gcloud auth print-access-token",
            refused("Your current active account does not have any valid credentials"),
            "login: gcloud: not logged in; gcloud auth login",
        ),
        (
            "gcloud compute tpus accelerator-types list --zone=us-west4-a",
            PATH.format("us-west4-a", "v5litepod-4"),
            "zone: us-west4-a does not offer v5litepod-16; no zone does; choose another type",
        ),
        (
            "gcloud compute tpus queued-resources list",
            json.dumps([{"name": "projects/p/locations/z/queuedResources/b1-1", "state": {},
                         "tpu": {"nodeSpec": [{"node": {}}]}}]),
            "name: --name=b1: the queued resource b1-1 is not of this job and workdir; choose "
            "another name",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_a_remedy(gcloud, command, prints, line):
    gcloud[command] = prints
    assert said()[-1] == line


def test_a_zone_without_the_type_names_those_that_have_it(gcloud):
    gcloud["gcloud compute tpus accelerator-types list --zone=us-west4-a"] = ""
    gcloud["gcloud compute tpus accelerator-types list --zone=-"] = "\n".join(
        PATH.format(zone, "v5litepod-16") for zone in ("us-west1-c", "europe-west4-b")
    )
    assert said()[-1] == (
        "zone: us-west4-a does not offer v5litepod-16; --zone=… of europe-west4-b, us-west1-c"
    )


@pytest.mark.parametrize(
    ("command", "prints", "line"),
    [
        (
            "gcloud storage buckets describe",
            "EUROPE-WEST4\tregion\n",
            "region: gs://bucket is in europe-west4; WARNING: not in us-west4, so reads are slow "
            "and are charged",
        ),
        ("gcloud storage buckets describe", "US\tmulti-region\n", "region: gs://bucket is in us"),
        (
            "gcloud projects get-iam-policy",
            "roles/storage.objectAdmin\n",
            f"give back: WARNING: {EMAIL} has no role in p to delete queued resources; it needs "
            "roles/tpu.admin, or this command must run at the end of the job",
        ),
        (
            "gcloud projects get-iam-policy",
            "roles/storage.objectAdmin\nprojects/p/roles/trainer\n",
            f"give back: not known ({EMAIL} has projects/p/roles/trainer); it needs "
            "roles/tpu.admin, or this command must run at the end of the job",
        ),
        (
            "gcloud projects get-iam-policy",
            refused("PERMISSION_DENIED: no"),
            "give back: not known (PERMISSION_DENIED: no); the account of the "
            "machines needs roles/tpu.admin, or this command must run at the end of the job",
        ),
    ],
)
def test_what_costs_or_needs_a_launcher_is_a_warning(gcloud, command, prints, line):
    gcloud[command] = prints
    assert line in said()


def test_the_account_of_the_machines_is_the_one_that_was_given(gcloud):
    line = said(service_account="t@p.iam.gserviceaccount.com")[-1]
    assert line == "give back: t@p.iam.gserviceaccount.com may delete queued resources"


@pytest.mark.parametrize(
    ("options", "topology", "line"),
    [
        (
            {},
            "tpu7x-16",
            "--topology=tpu7x-16: queued resources have v2, v3, v4, v5e, v5p, v6e; tpu7x is "
            "available through GKE: bert-jax launch gke run",
        ),
        (
            {"spot": True, "reserved": True},
            "v5e-16",
            "--spot with --reserved: reserved machines are not spot; give one",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_asked(options, topology, line):
    with pytest.raises(UserError) as refusal:
        Tpu(zone="us-west4-a", **options).check(job(topology))
    assert str(refusal.value) == line


def test_the_seconds_between_two_looks_make_no_other_job():
    one, other = Tpu(zone="z", poll=1), Tpu(zone="z", poll=60)
    assert job("v4-8").digest(one) == job("v4-8").digest(other)
    assert job("v4-8").digest(one) != job("v4-8").digest(Tpu(zone="y"))


@pytest.fixture
def bucket(gcloud, monkeypatch) -> MemoryBucket:
    """Of a job in us-west4-a of the project p, which is gcloud's; some of its machines exist."""
    made = MemoryBucket("gs://bucket/b1/launch/b1")
    of = Tpu(zone="us-west4-a", project="p").render(job("v5e-16"))
    made.write("0001/job.json", of.files["job.json"].encode())
    monkeypatch.setattr(backend, "_bucket", lambda of: made)
    return made


@pytest.mark.parametrize("verb", ["status", "stop", "delete"])
@pytest.mark.parametrize("place", [{"zone": "us-west4-b"}, {"zone": "us-west4-a", "project": "q"}])
def test_a_place_where_the_machines_are_not_is_refused(bucket, verb, place):
    """Nothing exists there: `delete` removed the records of machines that stayed."""
    before = bucket.list()
    with pytest.raises(UserError) as refusal:
        getattr(Tpu(**place), verb)(job("v5e-16"))
    given = "--zone=us-west4-b" if "project" not in place else "--project=q --zone=us-west4-a"
    assert str(refusal.value) == (
        f"{given}: the machines of b1 are in another zone or project; give --project=p "
        "--zone=us-west4-a"
    )
    assert bucket.list() == before


@pytest.mark.parametrize("project", ["p", ""])
def test_a_job_is_found_in_its_place_and_one_of_an_earlier_version_anywhere(bucket, project):
    at = Tpu(zone="us-west4-a", project=project)
    assert at.status(job("v5e-16")).startswith("no machine exists")
    record = bucket.read_json("0001/job.json")
    del record["zone"], record["project"]
    bucket.write_json("0001/job.json", record)
    assert Tpu(zone="us-west4-b").status(job("v5e-16")).startswith("no machine exists")


def test_a_job_that_may_have_machines_elsewhere_is_ended_there_first(bucket):
    stop = "bert-jax launch tpu stop --name=b1 --workdir=gs://bucket/b1 --project=p"
    bucket.write_json("0001/end.json", {"code": 42, "why": "stopped"})
    line = f"may have machines in another .*, or end it there first: {stop} --zone=us-west4-a$"
    with pytest.raises(UserError, match=line):
        Tpu(zone="us-west4-b").is_running(job("v5e-16"))
    bucket.write_json("0001/reported.json", {})
    assert not Tpu(zone="us-west4-b").is_running(job("v5e-16"))


@pytest.mark.parametrize("typed", ["p", ""])
def test_a_command_finds_its_job_whether_its_project_is_typed_or_gclouds(bucket, gcloud, typed):
    """The line about another project gives the flags with which it does."""
    record = bucket.read_json("0001/job.json")
    record["digest"] = job("v5e-16").digest(Tpu(zone="us-west4-a", project=typed))
    bucket.write_json("0001/job.json", record)
    for project in ("p", ""):
        assert Tpu(zone="us-west4-a", project=project).is_running(job("v5e-16"))
    for default in ("", "q"):
        gcloud["gcloud config get-value project"] = default
        with pytest.raises(UserError) as refusal:
            Tpu(zone="us-west4-a").is_running(job("v5e-16"))
        assert str(refusal.value) == (
            "--name=b1: has machines in another zone or project; give --project=p "
            "--zone=us-west4-a, or end it there first: bert-jax launch tpu stop --name=b1 "
            "--workdir=gs://bucket/b1 --project=p --zone=us-west4-a"
        )
    at = Tpu(zone="us-west4-a", project="p", spot=True)
    with pytest.raises(UserError, match="runs another command, or on other machines"):
        at.is_running(job("v5e-16"))


def test_the_project_that_gcloud_has_is_recorded(bucket, gcloud, monkeypatch):
    bucket.delete("0001/job.json")
    monkeypatch.setattr(Watcher, "run", lambda watcher: End(42, "stopped"))
    assert Tpu(zone="us-west4-b").run(job("v5e-16")) == 42
    record = bucket.read_json("0001/job.json")
    assert (record["zone"], record["project"]) == ("us-west4-b", "p")


def test_a_record_of_a_later_version_is_read(bucket):
    record = bucket.read_json("0001/job.json")
    record["new"], record["limits"]["new"] = 1, 2
    bucket.write_json("0001/job.json", record)
    assert Tpu(zone="us-west4-a").status(job("v5e-16")).startswith("no machine exists")


def test_the_script_of_a_dry_run_has_the_command_that_removes_an_earlier_record():
    script = Tpu(zone="us-west4-a", project="p").render(job("v5e-16")).script()
    delete = "bert-jax launch tpu delete --name=b1 --workdir=gs://bucket/b1 --project=p"
    line = f"# Where an earlier attempt has left a record, first: {delete} --zone=us-west4-a"
    assert line in script.splitlines()


@pytest.mark.parametrize("poll", [0, -5])
@pytest.mark.parametrize("verb", ["run", "status", "stop", "delete", "logs"])
def test_a_pause_that_cannot_be_is_refused_as_the_flags_are_read(verb, poll):
    name = f"launch tpu {verb}"
    with pytest.raises(UsageError, match=f"^flag --poll={poll}: {poll} is not a positive integer$"):
        parse(name, COMMANDS[name], [f"--poll={poll}"])


def test_secrets_are_looked_for(gcloud):
    gcloud["gcloud secrets versions describe"] = "enabled\n"
    lines = said(env_from=(("HF_TOKEN", "hf"), ("KEY", "projects/q/secrets/k/versions/3")))
    assert lines[-2:] == [
        "secret HF_TOKEN: hf is enabled",
        "secret KEY: projects/q/secrets/k/versions/3 is enabled",
    ]
    gcloud["gcloud secrets versions describe"] = refused("PERMISSION_DENIED: no")
    line = "secret HF_TOKEN: hf: not known (PERMISSION_DENIED: no)"
    assert said(env_from=(("HF_TOKEN", "hf"),))[-1] == line
    gcloud["gcloud secrets versions describe"] = refused("NOT_FOUND: Secret [x] not found")
    assert said(env_from=(("HF_TOKEN", "hf"),))[-1] == (
        "secret HF_TOKEN: hf: NOT_FOUND: Secret [x] not found; make it: gcloud secrets create hf "
        "--data-file=FILE, or if only the version is missing, add a version: gcloud secrets "
        "versions add hf --data-file=FILE"
    )
    assert said(env_from=(("KEY", "projects/q/secrets/k/versions/7"),))[-1] == (
        "secret KEY: projects/q/secrets/k/versions/7: NOT_FOUND: Secret [x] not found; make it: "
        "gcloud secrets create k --project=q --data-file=FILE, or if only the version is missing, "
        "add a version: gcloud secrets versions add k --project=q --data-file=FILE"
    )
    gcloud["gcloud secrets versions describe"] = "disabled\n"
    assert said(env_from=(("HF_TOKEN", "hf"),))[-1] == (
        "secret HF_TOKEN: hf: is disabled; add a version: gcloud secrets versions add hf "
        "--data-file=FILE"
    )


@pytest.mark.parametrize("reference", ["a/b", "projects/p/secrets/k", "a b", "", "/etc/token"])
def test_what_names_no_secret_is_refused(reference):
    with pytest.raises(UserError, match=f"--env_from=KEY={reference}: give a secret of Secret"):
        Tpu(zone="z").check(job("v5e-16", env_from=(("KEY", reference),)))
