"""`bert-jax` with a fault: faulty_process.py HOST PLACE NUMBER FAULT pretrain …

At the NUMBERth call of PLACE, counted from 1, the process that is called HOST does what FAULT says.
"""

import os
import signal
import sys
import time
from typing import NoReturn

import jax

from bert_jax import cli
from bert_jax.checkpoint import orbax_io
from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.data_pipeline.batch import Batches
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import UserError
from bert_jax.training import setup
from bert_jax.training.evaluation_pass import HeldOut
from bert_jax.training.profiling import Profiler
from bert_jax.training.step import StepFunctions

PLACES = {
    "meet JAX": (jax.distributed, "initialize"),
    "open": (setup, "open_store"),
    "compile": (StepFunctions, "compile_train"),
    "data": (Batches, "batch"),
    "step": (Profiler, "run"),
    "evaluate": (HeldOut, "evaluate"),
    "save": (RunCheckpoints, "save"),
    "write": (orbax_io, "write"),  # of process 0, in a thread
    "read": (orbax_io, "read"),
    "exchange": (ProcessGroup, "all_gather_text"),
}


def sleeps_for_ever() -> NoReturn:
    while True:
        time.sleep(1)


def has_a_bug() -> None:
    raise ValueError("a bug")


def is_refused() -> None:
    raise UserError("the machine lacks a licence; buy one")


FAULTS = {
    "hang": sleeps_for_ever,
    "bug": has_a_bug,
    "refusal": is_refused,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "elsewhere": lambda: os.chdir("elsewhere"),
}


def put_in(place: str, number: int, fault: str) -> None:
    owner, name = PLACES[place]
    original, calls = getattr(owner, name), 0

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            print(f"{fault} at {place}", flush=True)
            FAULTS[fault]()
        return original(*args, **kwargs)

    setattr(owner, name, counted)


if __name__ == "__main__":
    host, place, number, fault, *words = sys.argv[1:]
    if os.environ["BERT_JAX_HOST_NAME"] == host:
        put_in(place, int(number), fault)
    sys.exit(cli.main(words))
