"""Children that need not import again what takes seconds to import."""

import multiprocessing
import os
import sys
from multiprocessing import forkserver

import pytest


def preload(*modules: str) -> None:
    """Starts the server that forks them, and has it import the modules.

    Python 3.11 does not give it our path, and what it does not find it leaves out without a word.
    If the server runs already, nothing changes.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
