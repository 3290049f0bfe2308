"""Looks up the host of a bucket before its client does, which would repeat the look-up for minutes.

Only the first look-up of a process is short: a run whose network fails later waits as long as its
client and its retries do.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from gcsfs.core import GCSFileSystem

from bert_jax.errors import UserError
from bert_jax.storage.retry import RetryPolicy, retry

_HOST: Final = "https://storage.googleapis.com"
# A machine that has just started may not have its resolver yet.
LOOK_UPS: Final = RetryPolicy(
    attempts=3, pause=1.0, jitter=True, retryable=lambda error: isinstance(error, socket.gaierror)
)
_found: set[str] = set()


class Client(GCSFileSystem):
    """The client of gcsfs, which fsspec makes at the first contact with a bucket."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        check_host(settings)
        super().__init__(*arguments, **settings)


def check_host(settings: Mapping[str, Any]) -> None:
    """Looks up the host of buckets; does nothing once it was found, and for a client that may
    connect through a proxy or to another universe of Google's.

    settings: of the client.

    Raises:
        UserError: the host has no address.
    """
    if "session_kwargs" in settings or "GOOGLE_CLOUD_UNIVERSE_DOMAIN" in os.environ:
        return
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").replace("default", "")
    url = settings.get("endpoint_url") or emulator or _HOST
    host = urlsplit(url if "//" in url else f"//{url}").hostname
    if not host or host in _found:
        return
    try:
        retry(lambda: socket.getaddrinfo(host, None), LOOK_UPS)
    except (OSError, UnicodeError) as error:
        said = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UserError(
            f"gs://: {host} cannot be looked up ({said}); check this machine's network and DNS"
        ) from error
    _found.add(host)
