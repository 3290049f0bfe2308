"""What gcloud prints of queued resources, read: outputs of the real one (528)."""

import json

import pytest

from bert_jax.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.tpu.queued_resources import ApiError, QueuedResources
from bert_jax.launch.tpu.reconcile import Resource, is_transient

VERB = "gcloud.compute.tpus.queued-resources"
ADVICE = (
    "This may be due to network connectivity issues. Please check your network settings, and the "
    "status of the service you are trying to reach.\n"
)
LOGIN = """
Please run:

  $ gcloud auth login

to obtain new credentials.

For service account, please activate it first:

  $ gcloud auth activate-service-account ACCOUNT
"""


def resources(monkeypatch, *, prints: str = "[]", errors: str = "") -> QueuedResources:
    """The queued resources of a job, with a gcloud that prints this."""

    def call(words, **options):
        if errors:
            raise ProgramError(words, 1, errors)
        return prints

    monkeypatch.setattr(programs, "call", call)
    return QueuedResources("b1", "gs://bucket/b1/launch/b1", ("--zone=z",))


def listed(name: str, state: dict, owner: str = "gs://bucket/b1/launch/b1") -> dict:
    return {
        "name": f"projects/p/locations/z/queuedResources/{name}",
        "state": state,
        "tpu": {"nodeSpec": [{"node": {"metadata": {"bert-jax-job": owner}}}]},
    }


def test_the_resources_of_a_job_are_read_from_a_list_of_all(monkeypatch):
    error = {"code": 8, "message": "There is no more capacity\nin the zone"}
    shown = [
        listed("b1-10", {"state": "WAITING_FOR_RESOURCES"}),
        listed("b1-9", {"state": "FAILED", "failedData": {"error": error}}),
        listed("b1", {"state": "ACTIVE"}, owner="another"),
        listed("b1-2-3", {"state": "ACTIVE"}, owner="another"),
        listed("xb1-2", {"state": "ACTIVE"}, owner="another"),
    ]
    assert resources(monkeypatch, prints=json.dumps(shown)).list() == [
        Resource(9, "FAILED", 8, "There is no more capacity in the zone"),
        Resource(10, "WAITING_FOR_RESOURCES"),
    ]


@pytest.mark.parametrize("owner", ["gs://bucket/b2/launch/b1", None])
def test_a_name_that_is_taken_is_refused(monkeypatch, owner):
    taken = listed("b1-1", {"state": "ACTIVE"}, owner=owner)
    with pytest.raises(UserError, match=r"^--name=b1: the queued resource b1-1 is not of this job"):
        resources(monkeypatch, prints=json.dumps([taken])).list()


@pytest.mark.parametrize(
    ("errors", "line", "later"),
    [
        (
            f"ERROR: ({VERB}.list) RESOURCE_EXHAUSTED: Quota limit 'TPU' has been exceeded\n",
            "RESOURCE_EXHAUSTED: Quota limit 'TPU' has been exceeded",
            False,
        ),
        (
            f"ERROR: ({VERB}.list) RESOURCE_EXHAUSTED: There is no more capacity in the zone\n",
            "RESOURCE_EXHAUSTED: There is no more capacity in the zone",
            True,
        ),
        (
            f"ERROR: ({VERB}.list) RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Requests' "
            "and limit 'Requests per minute' of service 'tpu.googleapis.com'\n",
            None,
            True,
        ),
        (
            f"ERROR: ({VERB}.list) HttpError accessing <http://host/v2/x?alt=json>: response: "
            "<{'content-type': 'application/json', 'status': 503}>, content <{\"error\": "
            '{"code": 503, "message": "The service is currently unavailable.", "status": '
            f'"UNAVAILABLE"}}}}>\n{ADVICE}',
            "UNAVAILABLE: The service is currently unavailable.",
            True,
        ),
        (
            "ERROR: gcloud crashed (ConnectionError): HTTPSConnectionPool(host='host', "
            "port=443): Max retries exceeded with url: /v2/x (Caused by NameResolutionError)\n\nIf "
            "you would like to report this issue, please run the following command:\n  gcloud "
            "feedback\n",
            None,
            True,
        ),
        (
            f"ERROR: ({VERB}.list) Your current active account [me@example.com] does not have any "
            f"valid credentials{LOGIN}",
            "Your current active account [me@example.com] does not have any valid credentials",
            False,
        ),
        (
            f"ERROR: ({VERB}.list) PERMISSION_DENIED: Permission 'tpu.nodes.list' denied\n",
            "PERMISSION_DENIED: Permission 'tpu.nodes.list' denied",
            False,
        ),
        ("Segmentation fault\n", "Segmentation fault", False),
    ],
)
def test_errors_are_one_line_and_known_to_pass_or_to_last(monkeypatch, errors, line, later):
    with pytest.raises(ApiError) as caught:
        resources(monkeypatch, errors=errors).list()
    assert "\n" not in str(caught.value)
    assert line is None or str(caught.value) == line
    assert is_transient(caught.value.code, str(caught.value)) == later


def test_one_that_is_gone_is_deleted(monkeypatch):
    gone = f"ERROR: ({VERB}.delete) NOT_FOUND: Resource 'b1-1' was not found\n"
    resources(monkeypatch, errors=gone).delete(1)
    denied = f"ERROR: ({VERB}.delete) PERMISSION_DENIED: no\n"
    with pytest.raises(ApiError, match=r"^PERMISSION_DENIED: no$"):
        resources(monkeypatch, errors=denied).delete(1)
