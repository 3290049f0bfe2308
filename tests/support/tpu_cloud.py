"""The TPU API on loopback, as gcloud calls it, with machines that are processes.

It answers what `gcloud compute tpus queued-resources` and an agent ask of v2 of the API, strictly:
an unknown field of a request is an error. What a real cloud decides (capacity, preemption,
a host that fails, errors) happens on cue.
"""

import contextlib
import dataclasses
import itertools
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tpu_machine import Machine

from bert_jax.hardware import slices

ZONE, PROJECT = "us-central2-b", "the-project"
NO_CAPACITY = f'There is no more capacity in the zone "{ZONE}"; try another [EID: 0x1]'
NO_QUOTA = "Quota limit 'TPUV4PodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0"
_PLACE = rf"/v[12]/projects/{PROJECT}/locations/(?P<zone>[\w-]+)"
_QUEUED = re.compile(rf"{_PLACE}/queuedResources(?:/(?P<name>[\w-]+))?")
_CODES = {
    400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE",
}  # fmt: skip
_blocks = itertools.count(1)  # of loopback addresses: one for every slice


@dataclasses.dataclass
class Cues:
    """What happens; may be changed at any time."""

    seconds: float = 0.2  # between two states of what is being made
    stays: str = ""  # the state in which what is being made remains
    one_is_late: bool = False  # the last host of a slice does not boot while this is set
    without_capacity: int = 0  # requests that fail for lack of it
    refuse: tuple[int, str] = (0, "")  # status and message of every further request to create
    fail_every: int = 0  # every n-th request is answered with 503
    may_delete: bool = True  # whether machines may delete themselves


@dataclasses.dataclass
class _Resource:
    name: str
    body: dict[str, Any]
    state: str = "ACCEPTED"
    error: dict[str, Any] = dataclasses.field(default_factory=dict)
    machines: list[Machine] = dataclasses.field(default_factory=list)


class RefusedError(Exception):
    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class TpuCloud:
    """`with TpuCloud(folder, env) as cloud: …`; gcloud_transcripts.settings has gcloud ask it."""

    def __init__(self, folder: Path, machine_env: Mapping[str, str]):
        """folder: for the disks. machine_env: variables of every process of the machines."""
        self.cues = Cues()
        self.requests: list[tuple[str, str, Any]] = []  # method, path, body
        self.created: list[str] = []
        self.deleted: list[tuple[str, str]] = []  # name, and the state that it had
        self._folder, self._machine_env = folder, dict(machine_env)
        self._resources: dict[str, _Resource] = {}
        self._lock = threading.RLock()
        self._count = itertools.count(1)
        cloud = self

        class Handler(_Handler):
            server_cloud = cloud

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, client: None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> "TpuCloud":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for resource in list(self._resources.values()):
            for machine in resource.machines:
                machine.kill()
                if error[0]:
                    print(f"--- {machine.folder}\n{machine.journal}")  # beside the failure
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    # What a test sees and does.

    def states(self) -> dict[str, str]:
        """The state of each queued resource that exists, by name."""
        with self._lock:
            return {name: resource.state for name, resource in self._resources.items()}

    def machines(self, name: str) -> list[Machine]:
        return self._resources[name].machines

    def preempt(self, name: str) -> None:
        """All machines are gone at once; the queued resource stays, SUSPENDED."""
        resource = self._resources[name]
        resource.state = "SUSPENDING"
        for machine in resource.machines:
            machine.kill()
        resource.state = "SUSPENDED"

    def lose(self, name: str, host: int) -> None:
        """A host fails and is repaired: it boots again with the same disk."""
        machine = self._resources[name].machines[host]
        machine.kill()
        machine.start()

    def put(self, name: str, body: dict[str, Any]) -> None:
        """Adds a queued resource of somebody else."""
        self._resources[name] = _Resource(name, body, "ACTIVE")

    # What the API does.

    def create(self, zone: str, name: str, body: Any) -> dict[str, Any]:
        _check(body)
        with self._lock:
            if name in self._resources:
                raise RefusedError(409, f"Resource '{self._path(zone, name)}' already exists")
            if self.cues.refuse[0]:
                raise RefusedError(*self.cues.refuse)
            assert not self._resources, "a second queued resource of the job"
            resource = self._resources[name] = _Resource(name, body)
            self.created.append(name)
        threading.Thread(target=self._make, args=(resource,), daemon=True).start()
        return self._operation(zone)

    def delete(self, zone: str, name: str, query: Mapping[str, str], token: str) -> dict[str, Any]:
        if not self.cues.may_delete and "of the machine" in token:
            raise RefusedError(403, f"Permission 'tpu.nodes.delete' denied on '{name}'")
        with self._lock:
            resource = self._find(zone, name)
            if query.get("force", "").lower() != "true" and resource.state not in (
                "ACCEPTED", "FAILED", "SUSPENDED",
            ):  # fmt: skip
                raise RefusedError(400, "the queued resource has nodes; delete it with force")
            if resource.state != "DELETING":
                self.deleted.append((name, resource.state))
                resource.state = "DELETING"
                threading.Thread(target=self._remove, args=(resource,), daemon=True).start()
        return self._operation(zone)

    def get(self, zone: str, name: str) -> dict[str, Any]:
        with self._lock:
            return self._shown(zone, self._find(zone, name))

    def listing(self, zone: str) -> dict[str, Any]:
        with self._lock:
            shown = [self._shown(zone, resource) for resource in self._resources.values()]
        return {"queuedResources": shown}

    def _find(self, zone: str, name: str) -> _Resource:
        if name not in self._resources:
            raise RefusedError(404, f"Resource '{self._path(zone, name)}' was not found")
        return self._resources[name]

    def _path(self, zone: str, name: str) -> str:
        return f"projects/{PROJECT}/locations/{zone}/queuedResources/{name}"

    def _shown(self, zone: str, resource: _Resource) -> dict[str, Any]:
        state = {"state": resource.state}
        if resource.error:
            state["failedData"] = {"error": resource.error}
        return {"name": self._path(zone, resource.name), "state": state, **resource.body}

    def _operation(self, zone: str) -> dict[str, Any]:
        name = f"projects/{PROJECT}/locations/{zone}/operations/operation-{next(self._count)}"
        return {"name": name, "done": True, "metadata": {}, "response": {}}

    def _make(self, resource: _Resource) -> None:
        """Leads a queued resource through the states to its machines, or to FAILED."""
        for state in ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"):
            time.sleep(self.cues.seconds)
            while self.cues.stays == resource.state:
                time.sleep(0.05)
            with self._lock:
                if resource.state == "DELETING":
                    return
                if state == "PROVISIONING" and self.cues.without_capacity:
                    self.cues.without_capacity -= 1
                    resource.state = "FAILED"
                    resource.error = {"code": 8, "message": NO_CAPACITY}
                    return
                if state == "ACTIVE":
                    resource.machines = self._machines(resource)
                    for machine in resource.machines[: -1 if self.cues.one_is_late else None]:
                        machine.start()
                resource.state = state
        self._boot_the_last(resource)

    def _boot_the_last(self, resource: _Resource) -> None:
        while self.cues.one_is_late:
            time.sleep(0.05)
        last = resource.machines[-1]
        if resource.state == "ACTIVE" and not last.folder.exists():
            last.start()

    def _machines(self, resource: _Resource) -> list[Machine]:
        """Returns the hosts of all slices; each has an address of its own on loopback."""
        (spec,) = resource.body["tpu"]["nodeSpec"]
        node, several = spec["node"], spec.get("multisliceParams")
        count = several["nodeCount"] if several else 1
        hosts = slices.find(node["acceleratorType"]).hosts
        machines, first = [], ""
        for index in range(count):
            block = f"127.{next(_blocks) % 200 + 20}.{id(self) % 250}"
            addresses = [f"{block}.{host + 1}" for host in range(hosts)]
            first = first or addresses[0]
            env = (
                f"MEGASCALE_COORDINATOR_ADDRESS: '{first}:8080'\nMEGASCALE_NUM_SLICES: '{count}'\n"
            )
            env += f"MEGASCALE_SLICE_ID: '{index}'\n"
            for host in range(hosts):
                attributes = {
                    **node["metadata"],
                    "agent-worker-number": str(host),
                    "worker-network-endpoints": ",".join(addresses),
                    "tpu-env": env if count > 1 else "",
                }
                folder = self._folder / resource.name / f"{index}-{host}"
                override = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": self.url}
                machines.append(
                    Machine(folder, attributes, ZONE, {**self._machine_env, **override})
                )
        return machines

    def _remove(self, resource: _Resource) -> None:
        for machine in resource.machines:
            machine.kill()
        time.sleep(self.cues.seconds)
        with self._lock:
            self._resources.pop(resource.name, None)


# The fields of a request that the API takes, in the places where they stand.
_FIELDS: dict[str, Any] = {
    "spot": {},
    "guaranteed": {},
    "reservationName": str,
    "tpu": {
        "nodeSpec": [{
            "parent": str,
            "nodeId": str,
            "multisliceParams": {"nodeCount": int, "nodeIdPrefix": str},
            "node": {
                "acceleratorType": str,
                "runtimeVersion": str,
                "labels": None,
                "metadata": None,
                "networkConfig": {"enableExternalIps": bool, "network": str, "subnetwork": str},
                "serviceAccount": {"email": str, "scope": [str]},
            },
        }]
    },
}  # fmt: skip


def _check(value: Any, like: Any = None, where: str = "queuedResource") -> None:
    """Raises RefusedError for a field that the API does not have, or of another type."""
    like = _FIELDS if like is None else like
    if isinstance(like, dict) and isinstance(value, dict):
        for key, inner in value.items():
            if key not in like:
                raise RefusedError(400, f"Unknown name \"{key}\" at '{where}'")
            if like[key] is not None:  # None: free keys
                _check(inner, like[key], f"{where}.{key}")
    elif isinstance(like, list) and isinstance(value, list):
        for inner in value:
            _check(inner, like[0], where)
    elif not (isinstance(like, type) and isinstance(value, like)):
        raise RefusedError(400, f"Invalid value at '{where}'")


class _Handler(BaseHTTPRequestHandler):
    server_cloud: TpuCloud
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _handle(self) -> None:
        cloud = self.server_cloud
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else None
        with cloud._lock:
            cloud.requests.append((self.command, self.path, body))
            every = cloud.cues.fail_every
            fails = every and len(cloud.requests) % every == 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            try:
                if fails:
                    raise RefusedError(503, "The service is currently unavailable.")
                self._answer(200, self._route(split.path, query, body))
            except RefusedError as refused:
                error = {
                    "code": refused.status,
                    "message": str(refused),
                    "status": _CODES[refused.status],
                }
                self._answer(refused.status, {"error": error})

    def _route(self, path: str, query: Mapping[str, str], body: Any) -> dict[str, Any]:
        cloud = self.server_cloud
        if match := _QUEUED.fullmatch(path):
            zone, name = match["zone"], match["name"]
            if self.command == "POST":
                return cloud.create(zone, query["queuedResourceId"], body)
            if self.command == "DELETE":
                return cloud.delete(zone, name, query, self.headers.get("Authorization", ""))
            return cloud.get(zone, name) if name else cloud.listing(zone)
        if match := re.fullmatch(rf"{_PLACE}/acceleratorTypes", path):
            return {"acceleratorTypes": list(_types(match["zone"]))}
        if re.fullmatch(rf"{_PLACE}/operations/[\w-]+", path):
            return {"name": path.removeprefix("/v2/"), "done": True, "response": {}}
        raise RefusedError(404, f"{self.command} {path} is not known here")


def _types(zone: str) -> Iterator[dict[str, str]]:
    """The types that a zone offers: v4 in ZONE, v5e in another; "-" is all zones."""
    for place, name in ((ZONE, "v4"), ("us-west4-a", "v5e")):
        if zone in ("-", place):
            for shape in slices.GENERATIONS[name].shapes[:8]:
                found = slices.Slice(slices.GENERATIONS[name], shape)
                kind = found.name.replace("v5e-", "v5litepod-")
                path = f"projects/{PROJECT}/locations/{place}/acceleratorTypes/{kind}"
                yield {"name": path, "type": kind}


for _method in ("GET", "POST", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._handle)
