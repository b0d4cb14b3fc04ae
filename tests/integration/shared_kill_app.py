"""The app of worker processes that die once at each step of a shared transaction."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import late
from late.dispatcher.transactions.turn_queue import TurnQueue
from late.outbox.adapters.psycopg_shared import PsycopgShared
from late.outbox.adapters.sqlite_shared import SqliteShared
from late.scheduler.shared_settlements import SharedSettlements
from late.store.postgres import shared_transaction
from late.store.postgres.journal import statements_of
from late.store.sqlite import journal
from late.store.sqlite import shared_transaction as in_a_file
from tests.integration.shared_effect import effect, effect_async

URL = os.environ.get("LATE_TEST_KILL_URL", "postgresql://nowhere/none")
KIND = os.environ.get("LATE_TEST_KILL_KIND", "def")
FOLDER = os.environ.get("LATE_TEST_KILL_DIR", "")
STEPS = (
    "opened", "in a handler", "handlers done", "before the settlement", "settlement written",
    "committed", "before it is taken in", "taken in",
)  # fmt: skip
AFTER = 3
"""A process dies at a step when it comes to it for so many times: it has worked before."""
app = late.App(URL)
_come = dict.fromkeys(STEPS, 0)
_dying = threading.Lock()
"""Taken once: two threads at two steps would be one death with two marks."""


def claims(step: str) -> bool:
    """Whether this process is to die at the step: it has come to it often, and no other has."""
    _come[step] += 1
    if _come[step] < AFTER:
        return False
    if not _dying.acquire(blocking=False):
        return False
    path = os.path.join(FOLDER, f"{step.replace(' ', '-')}.died")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _dying.release()
        return False
    return True


def die_once(step: str) -> None:
    if claims(step):
        os.kill(os.getpid(), signal.SIGKILL)


def _after(kind: Any, name: str, step: str, *, before: bool = False) -> None:
    call = getattr(kind, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        if before:
            die_once(step)
        found = call(*given, **named)
        if not before:
            die_once(step)
        return found

    static = isinstance(kind.__dict__[name], staticmethod)
    setattr(kind, name, staticmethod(wrapped) if static else wrapped)


def _write(tx: Any, settlements: Any) -> None:
    if URL.startswith("sqlite"):
        journal.write_within(tx, settlements)
        return
    for statement, values in statements_of(settlements):
        tx.execute(statement, values)


def _in_commit(commit: Any, tx: Any, settlements: Any) -> Any:
    die_once("before the settlement")
    if claims("settlement written"):
        _write(tx, settlements)
        os.kill(os.getpid(), signal.SIGKILL)
    found = commit(tx, settlements)
    die_once("committed")
    return found


if FOLDER:
    for kind in (PsycopgShared, SqliteShared):
        _after(kind, "__init__", "opened")
        _after(kind, "last", "handlers done")
    for module in (shared_transaction, in_a_file):
        commit: Any = module.commit
        setattr(module, "commit", partial(_in_commit, commit))  # noqa: B010
    _after(SharedSettlements, "_take_in", "before it is taken in", before=True)
    _after(TurnQueue, "_end", "taken in", before=True)


def charge(ctx: late.Context, number: int) -> None:
    effect(ctx, number)
    if number % 20 == 3 and ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    if number % 9 == 5:
        die_once("in a handler")


async def charge_async(ctx: late.AsyncContext, number: int) -> None:
    await effect_async(ctx, number)
    if number % 20 == 3 and ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    if number % 9 == 5:
        die_once("in a handler")


task: Any = app.task(name="charge", transaction=True, retry=late.Retry(base=0.05, cap=0.1))(
    charge_async if KIND == "async def" else charge
)
