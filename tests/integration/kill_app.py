"""The app of the worker processes in `test_kill.py`: its handlers leave witnesses in files.

One file per process, one `os.write` per line to a descriptor in append mode: what was written
before a SIGKILL is there afterwards. Never the database under test.
"""

from __future__ import annotations

import os
import signal

import late

URL = os.environ.get("LATE_TEST_KILL_URL", "sqlite:///unused.db")
app = late.App(URL)
_witness = -1


def witness(text: str) -> None:
    global _witness
    if _witness < 0:
        path = os.path.join(os.environ["LATE_TEST_KILL_DIR"], f"{os.getpid()}.txt")
        _witness = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(_witness, f"{text}\n".encode())


@app.task()
async def count(number: int) -> None:
    witness(f"{number}")


@app.task(process=True, retry=late.Retry(base=0.05, cap=0.1))
def killer(number: int) -> None:
    witness(f"{number}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task()
async def poison(number: int) -> None:
    """In the worker's own process, where nobody is left to tell."""
    witness(f"{number}")
    os.kill(os.getpid(), signal.SIGKILL)
