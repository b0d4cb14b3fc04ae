"""The app of the worker processes in `test_kill.py`: its handlers leave witnesses in files.

One file per process, one `os.write` per line to a descriptor in append mode: what was written
before a SIGKILL is there afterwards. Never the database under test.
"""

from __future__ import annotations

import asyncio
import os
import signal

import late
from tests.integration.effects_kit import do

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


@app.task(queue="shared")
async def shared(ctx: late.AsyncContext, number: int) -> None:
    """For several groups."""
    await asyncio.sleep(0.002)
    witness(f"{ctx.group} {number}")


@app.task(process=True, retry=late.Retry(base=0.05, cap=0.1))
def killer(number: int) -> None:
    witness(f"{number}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task()
async def poison(number: int) -> None:
    """In the worker's own process, where nobody is left to tell."""
    witness(f"{number}")
    os.kill(os.getpid(), signal.SIGKILL)


def _die_once(when: str, number: int) -> None:
    """Kill this process if nobody has died for this reason yet."""
    path = os.path.join(os.environ["LATE_TEST_KILL_DIR"], f"{when}-{number}.died")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


DIES_INSIDE, DIES_BEHIND, DIES_CARELESS = (7,), (3, 12), (105,)
"""Numbers whose first run dies before its effect is committed, and before that is settled."""


@app.task()
def charge(ctx: late.Context, number: int) -> None:
    with ctx.once() as tx:
        do(tx, number)
        if number in DIES_INSIDE:
            _die_once("inside", number)
    if number in DIES_BEHIND:
        _die_once("behind", number)


@app.task()
async def charge_async(ctx: late.AsyncContext, number: int) -> None:
    async with ctx.once() as tx:
        await do(tx, number)
        if number in DIES_INSIDE:
            _die_once("inside", number)
    if number in DIES_BEHIND:
        _die_once("behind", number)


@app.task()
def careless(ctx: late.Context, number: int) -> None:
    """The control: a transaction that says nothing of the task."""
    with ctx.begin() as tx:
        do(tx, number)
    if number in DIES_CARELESS:
        _die_once("behind", number)
