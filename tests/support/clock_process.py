"""`bert-jax` with a wall clock that jumps by days, forth and back, otherwise in every process."""

import itertools
import os
import sys
import time

_DAY = 86_400.0
_right = time.time
_host = int(os.environ["BERT_JAX_HOST_NAME"].rpartition("-")[2])
_jumps = itertools.cycle([0.0, _DAY * (_host + 1), -_DAY * (_host + 1)])
time.time = lambda: _right() + next(_jumps)
time.time_ns = lambda: int(time.time() * 1e9)

from bert_jax import cli  # noqa: E402  (which then sees that clock alone)

if __name__ == "__main__":
    sys.exit(cli.main())
