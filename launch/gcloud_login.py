"""The account that the user is logged in with at gcloud."""

import time

from bert_jax.launch.programs import call

_LIFE = 1800.0  # seconds for which a token is used; it is valid for at least an hour


class Login:
    """Access tokens of gcloud's account."""

    def __init__(self) -> None:
        self._token, self._until = "", 0.0

    def token(self) -> str:
        if time.monotonic() > self._until:
            self._token = call(["gcloud", "auth", "print-access-token", "--quiet"]).strip()
            self._until = time.monotonic() + _LIFE
        return self._token
