"""`bert-jax`, saying a line for everything that it compiles or finds compiled.

For a program of JAX "asked", then "found" or, where it was compiled and written, "kept"; "numba"
for a function that numba compiles.
"""

import sys

import jax
from numba.core import event

from bert_jax import cli

SAYS = {
    "/jax/compilation_cache/compile_requests_use_cache": "asked",
    "/jax/compilation_cache/cache_hits": "found",
    "/jax/compilation_cache/cache_misses": "kept",
}


class Said(event.Listener):
    def on_start(self, about: event.Event) -> None:
        print("numba", flush=True)

    def on_end(self, about: event.Event) -> None:
        pass


def say(name: str, **about: object) -> None:
    if name in SAYS:
        print(SAYS[name], flush=True)


if __name__ == "__main__":
    jax.monitoring.register_event_listener(say)
    event.register("numba:compile", Said())
    sys.exit(cli.main())
