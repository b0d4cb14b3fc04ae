"""Workflows of two queues: `charge` of the queue `pay` fails while it is broken, and `send` of the
queue `mail` does not."""

from __future__ import annotations

import time

import late
from late.concurrency import in_thread
from late.outbox import connect
from late.testing import drain


def next_ms() -> None:
    """Wait until ids get another time: those of one millisecond stand in the order of shards."""
    began = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= began:
        time.sleep(0.0005)


class Shop:
    """An app of the database at `url`."""

    def __init__(self, url: str) -> None:
        self.broken = True
        self.app = app = late.App(url, shards=4)

        @app.task(queue="pay", retry=late.Retry(max_attempts=1))
        def charge(number: int) -> None:
            if self.broken:
                raise ValueError("card declined")

        @app.task(queue="mail")
        def send(number: int) -> None: ...

    def put(self, first: str, *, side: int = 1, delay: float = 0) -> list[str]:
        """Enqueue a few tasks side by side, and `send` behind them."""
        next_ms()
        task = self.app.tasks[first].options(delay=delay)
        calls = [task.call(number) for number in range(side)]
        with connect(self.app.url) as tx:
            made = late.chord(calls, self.app.tasks["send"].call(9))
            ids: list[str] = self.app.enqueue_workflow(tx, made)
        return ids

    async def drain(self) -> None:
        """Run all that is due."""
        await in_thread(drain, self.app)
