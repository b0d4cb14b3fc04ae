"""The app of the workers in `test_stalls.py` and `test_pauses.py`: witnesses as in `kill_app`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import late
from late.dispatcher.settler import Settler
from late.store.base import Settlement, SettleResult
from tests.integration.kill_app import witness

app = late.App(os.environ.get("LATE_TEST_KILL_URL", "sqlite:///unused.db"))
_folder = Path(os.environ.get("LATE_TEST_KILL_DIR", "."))


async def _settle(self: Settler, settlements: list[Settlement]) -> list[SettleResult]:
    """Stops this process where it has begun to settle and has not committed, if the test asks."""
    marker = _folder / "stop-at-settle"
    if marker.exists() and any(settlement.usage for settlement in settlements):
        marker.rename(_folder / "stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
    return await _write(self, settlements)


_write = Settler.write
Settler.write = _settle  # type: ignore[method-assign]


@app.task()
async def count(number: int) -> None:
    witness(f"{number}")


@app.task()
async def linger(number: int, seconds: float) -> None:
    """Says when it starts, and after a while, with the number below zero, that it returns."""
    witness(f"{number}")
    await asyncio.sleep(seconds)
    witness(f"{-number}")


@app.task()
async def block(number: int) -> None:
    """Blocks the loop of the first process that runs it, for ever: a call that does not await."""
    witness(f"{number}")
    marker = _folder / "blocked"
    try:
        with marker.open("x") as made:
            made.write(str(os.getpid()))
    except FileExistsError:
        return
    while True:
        time.sleep(60)  # noqa: ASYNC251  the mistake that this is about


@app.task(timeout_s=1.0, retry=late.Retry(base=0.1, cap=0.1))
def stuck(number: int) -> None:
    """Runs on after its time-out, in a thread that nothing can end, in the first process only."""
    witness(f"{number}")
    # A link is there as a whole, or not at all: of a file, another thread may read nothing yet
    marker = _folder / "stuck"
    with contextlib.suppress(FileExistsError):
        marker.symlink_to(str(os.getpid()))
    if marker.readlink() != Path(str(os.getpid())):
        return
    while True:
        time.sleep(60)


@app.task(timeout_s=1.0, retry=late.Retry(base=0.1, cap=0.1))
def stuck_too(number: int) -> None:
    """As `stuck`, under another name."""
    stuck(number)
