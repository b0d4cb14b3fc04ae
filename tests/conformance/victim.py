"""A process that is to be killed: writes for ever, in one of two ways, and says when it began.

python -m tests.conformance.victim settle URL
python -m tests.conformance.victim produce BACKEND URL
"""

from __future__ import annotations

import asyncio
import sys

from late.model.task import AttemptError
from late.store import open_store
from tests.conformance.backends import BACKENDS
from tests.conformance.kit import dead, own, parked, task

TIMERS = 300


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
    else:
        produce(*sys.argv[2:])
