"""Metadata of a Google machine: its server, its account, its place in a slice."""

import base64
import dataclasses
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from typing import Any

from bert_jax.launch.tpu.bucket import TRANSIENT

_TIMEOUT = 10.0  # seconds without a response
_ATTEMPTS = 4  # of one request to an API
_PAUSE = 1.0  # seconds after the first failed attempt; doubles
_EARLY = 120.0  # seconds before a token expires at which another is fetched
# Also open in the firewall rules that Cloud TPU makes; JAX's own default, 8482, is not.
PORT = 8476


class MachineError(Exception):
    """The metadata server or an API does not answer as expected; one line."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Index of a host among all hosts of the job's slices, their number, and host 0's address."""

    index: int
    hosts: int
    coordinator: str


class Machine:
    """The metadata server, and Google's APIs in the name of the machine's service account."""

    def __init__(self) -> None:
        self.server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._url = f"http://{self.server}/computeMetadata/v1"
        # Not through a proxy: the server is the machine's own.
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._known_token, self._expires = "", 0.0

    def get(self, path: str) -> str | None:
        """Returns a value, None if it does not exist.

        Raises:
            MachineError: the server does not answer.
        """
        request = urllib.request.Request(f"{self._url}/{path}")
        request.add_header("Metadata-Flavor", "Google")
        try:
            with self._direct.open(request, timeout=_TIMEOUT) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise MachineError(f"metadata {path}: {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise MachineError(f"metadata {path}: {error}") from None

    def attribute(self, name: str) -> str | None:
        return self.get(f"instance/attributes/{name}")

    def token(self) -> str:
        """Returns an access token of the service account; MachineError if the machine has none."""
        if time.monotonic() > self._expires:
            text = self.get("instance/service-accounts/default/token")
            if text is None:
                raise MachineError("this machine has no service account; give --service_account")
            value = json.loads(text)
            self._known_token = value["access_token"]
            self._expires = time.monotonic() + value["expires_in"] - _EARLY
        return self._known_token

    def place(self) -> Place:
        """Returns where this host is; MachineError while the metadata is not complete."""
        number, workers = self.attribute("agent-worker-number"), self._workers()
        if number is None or not workers:
            raise MachineError("metadata: agent-worker-number or worker-network-endpoints is empty")
        env = self._tpu_env()
        slices, index = int(env.get("MEGASCALE_NUM_SLICES", 1)), int(number)
        first = env.get("MEGASCALE_COORDINATOR_ADDRESS", "").split(":")[0] or workers[0]
        index += int(env.get("MEGASCALE_SLICE_ID", 0)) * len(workers)
        return Place(index, slices * len(workers), f"{first}:{PORT}")

    def _workers(self) -> list[str]:
        """Returns the addresses of the slice's hosts: the server lists them, or name:id:address."""
        text = self.attribute("worker-network-endpoints") or ""
        return [part.split(":")[-1] for part in text.split(",") if part]

    def _tpu_env(self) -> dict[str, str]:
        """Returns the variables that a host of several slices has; each line is NAME: 'value'."""
        text = self.attribute("tpu-env") or ""
        return dict(re.findall(r"^\s*(\w+)\s*:\s*'?([^'\n]*)'?\s*$", text, re.MULTILINE))

    def is_leaving(self) -> bool:
        """Returns whether the machine is about to be preempted or stopped for maintenance."""
        try:
            preempted = self.get("instance/preempted") or "FALSE"
            event = self.get("instance/maintenance-event") or "NONE"
        except MachineError:
            return False
        return preempted != "FALSE" or event != "NONE"

    def secret(self, name: str) -> str:
        """Returns a secret of Secret Manager.

        name: SECRET, or projects/P/secrets/SECRET/versions/V.

        Raises:
            MachineError: it does not exist, or the service account may not read it.
        """
        if "/" not in name:
            project = self.get("project/project-id")
            name = f"projects/{project}/secrets/{name}/versions/latest"
        found = self._call("GET", "secretmanager", f"v1/{name}:access")
        return base64.b64decode(found["payload"]["data"]).decode()

    def delete_resource(self, name: str) -> None:
        """Deletes a queued resource of this machine's project and zone, and so this machine.

        Raises:
            MachineError: the API does not take the request.
        """
        project = self.get("project/project-id")
        zone = (self.get("instance/zone") or "").rpartition("/")[2]
        place = f"projects/{project}/locations/{zone}/queuedResources/{name}"
        self._call("DELETE", "tpu", f"v2/{place}?force=true")

    def _call(self, method: str, api: str, path: str) -> Any:
        # The variable by which gcloud finds another server.
        named = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}")
        server = (named or f"https://{api}.googleapis.com").rstrip("/")
        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE * 2 ** (attempt - 1))
            request = urllib.request.Request(f"{server}/{path}", method=method)
            request.add_header("Authorization", f"Bearer {self.token()}")
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                text = " ".join(error.read(500).decode(errors="replace").split())
                reason = f"{error.code} {text}"
                if error.code not in TRANSIENT:
                    break
            except (OSError, http.client.HTTPException) as error:
                reason = str(error)
        raise MachineError(f"{api} API: {reason}")
