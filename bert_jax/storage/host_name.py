"""The name of this machine, for messages and records."""

import os
import socket
from typing import Final

HOST_VARIABLE: Final = "BERT_JAX_HOST_NAME"  # set by a launcher that runs several on one machine


def host_name() -> str:
    """Returns this machine's name, or the one that its launcher gave it."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()
