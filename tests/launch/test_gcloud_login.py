"""Access tokens of gcloud: how long one is used, and what is said without one."""

import pytest

from bert_jax.launch import programs
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.tpu import backend
from bert_jax.launch.tpu.backend import Login
from bert_jax.launch.tpu.bucket import BucketError

# Of gcloud 528 without a login.
LOGGED_OUT = """\
ERROR: (gcloud.auth.print-access-token) You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials.

If you have already logged in with a different account, run:

  $ gcloud config set account ACCOUNT

to select an already authenticated account to use.
"""


@pytest.fixture
def gcloud(monkeypatch):
    """Another token at each call; the clock stands still at `now`."""
    state = {"now": 1000.0, "calls": 0}

    def call(words):
        state["calls"] += 1
        return f"token {state['calls']}\n"

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(backend.time, "time", lambda: state["now"])
    return state


def test_a_token_is_used_no_longer_than_gcloud_keeps_it_valid(gcloud):
    """gcloud refreshes one that would expire within five minutes."""
    login = Login()
    assert [login.token(), login.token()] == ["token 1", "token 1"]
    gcloud["now"] += 299.0
    assert login.token() == "token 2"


def test_without_a_login_the_line_says_how_to_log_in(monkeypatch):
    def call(words):
        raise ProgramError(words, 1, LOGGED_OUT)

    monkeypatch.setattr(programs, "call", call)
    with pytest.raises(BucketError) as refused:  # after which a launcher looks again
        Login().token()
    assert str(refused.value) == (
        "gcloud: no access token (You do not currently have an active account selected.); to log "
        "in: gcloud auth login"
    )
