"""The name of this program, to be typed in a shell."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """Returns `bert-jax` if it is on PATH, else the path of the script next to this Python, or
    Python's command for the module."""
    script = Path(sys.executable).with_name("bert-jax")
    if shutil.which("bert-jax") == str(script):
        return "bert-jax"
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m bert_jax"
    relative = os.path.relpath(script)
    return shlex.quote(str(script) if relative.startswith("..") else f"./{relative}")
