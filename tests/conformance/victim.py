"""A process that is to be killed: writes in one of three ways, and says when it began.

python -m tests.conformance.victim settle URL
python -m tests.conformance.victim compact URL
python -m tests.conformance.victim produce BACKEND URL
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from late.model.task import AttemptError
from late.store import open_store
from late.store.common import compaction
from tests.conformance.backends import BACKENDS
from tests.conformance.kit import dead, own, parked, task

TIMERS = 300
BATCHES = 3
ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    """A victim, once it has said that it began."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.victim", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


async def settle(url: str) -> None:
    """Settlement after settlement, each with timers and a dead letter that bear its number."""
    store = open_store(url)
    await store.open()
    owner = await own(store)
    print("ready", flush=True)
    while True:
        number = owner.seq + 1
        await owner.settle(
            parked=tuple(parked(number) for _ in range(TIMERS)),
            dead=(dead(errors=(AttemptError(1, number, "victim", "x"),), attempts=number),),
        )


async def compact_some(url: str) -> None:
    """Some batches of a compaction; then stop between the reads and the writes of the next one."""
    # It has a part in each store, and Spanner's client takes a second to import.
    from tests.conformance.journal_kit import PLANNERS, compact

    compaction.BATCH = 5
    plan, planned = compaction.plan_sums, 0

    def stops(*given: Any) -> compaction.Compacted:
        nonlocal planned
        planned += given[2] == compaction.BATCH
        if planned > BATCHES:
            print("ready", flush=True)
            time.sleep(600)
        return plan(*given)

    for module in PLANNERS:
        module.plan_sums = stops  # type: ignore[attr-defined]
    store = open_store(url)
    await store.open()
    await compact(store)


def produce(backend: str, url: str) -> None:
    """A business row and a task in one transaction, again and again; then stop between the two."""
    (kind,) = [each for each in BACKENDS if each.name == backend]
    raw = kind.raw(url)
    for number in range(3):
        raw.begin()
        raw.execute("insert into trips (id) values (?)", number)
        raw.insert(task(0, str(number).encode()))
        raw.commit()
    raw.begin()
    raw.execute("insert into trips (id) values (99)")
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "settle":
        asyncio.run(settle(sys.argv[2]))
    elif sys.argv[1] == "compact":
        asyncio.run(compact_some(sys.argv[2]))
    else:
        produce(*sys.argv[2:])
