"""The account that the user is logged in with at gcloud."""

import time

from bert_jax.launch import programs
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.tpu.bucket import BucketError
from bert_jax.launch.tpu.queued_resources import api_error

# Seconds for which a token is used: gcloud prints one that it has kept while that is valid for five
# more minutes.
_LIFE = 240.0


class Login:
    """Access tokens of gcloud's account."""

    def __init__(self) -> None:
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """Raises BucketError if gcloud has none: without a login, or without a network."""
        if time.time() > self._until:  # a clock that also counts while a laptop sleeps
            try:
                words = ["gcloud", "auth", "print-access-token", "--quiet"]
                self._token = programs.call(words).strip()
            except ProgramError as error:
                reason = api_error(error)
                raise BucketError(
                    f"gcloud: no access token ({reason}); to log in: gcloud auth login"
                ) from None
            self._until = time.time() + _LIFE
        return self._token
