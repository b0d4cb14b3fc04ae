"""What local handlers need is away for a while: nothing dies of it, and poison still dies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

import late
from late import events
from late.control import Control, Filter
from late.outbox import connect
from late.testing import drain
from tests.integration.fleet_kit import until, working
from tests.integration.kill_kit import commit

QUICK = late.Retry(max_attempts=3, base=0.02, factor=2.0, cap=0.2)
"""Its attempts are over in a tenth of a second: an outage that counted would kill every task."""


class Service:
    """The app, and the dependency of its handler."""

    def __init__(self, url: str) -> None:
        self.app = late.App(url)
        self.away = True
        self.calls: Counter[int] = Counter()
        self.said: list[str] = []

        @self.app.task(retry=QUICK)
        def store(number: int) -> None:
            self.calls[number] += 1
            if number < 0:
                raise ValueError("poison")
            if self.away:
                raise ConnectionError("the warehouse is away")

        self.store = store

    def note(self, event: events.Event, values: Any) -> None:
        self.said.append(event.name)

    def enqueue(self, numbers: range) -> None:
        with connect(self.app.url) as tx:
            self.app.enqueue_many(tx, [self.store.call(n) for n in numbers])


def dead(url: str) -> list[str]:
    with Control(url) as control:
        return [letter.reason for letter in control.dead_letters.find(Filter())]


def test_an_outage_makes_no_dead_letters(url: str) -> None:
    service = Service(url)
    service.enqueue(range(8))
    unsubscribe = events.default.subscribe(
        service.note, [events.OUTAGE_BEGAN, events.OUTAGE_ENDED, events.DEAD_LETTER]
    )
    ended: list[dict[str, int]] = []
    worker = threading.Thread(
        target=lambda: ended.append(drain(service.app, timeout_s=90, wait_s=30))
    )
    try:
        worker.start()
        deadline = time.monotonic() + 120
        # They have been called more often than all have attempts together.
        while not (len(service.calls) == 8 and service.calls.total() > 8 * 3):
            assert time.monotonic() < deadline, service.calls
            time.sleep(0.01)
        service.away = False
        worker.join()
    finally:
        unsubscribe()
    assert ended == [{"done": 8}]
    assert dead(url) == []
    # It may be over and begin again while the last failures come in
    assert (service.said[0], service.said[-1]) == ("outage_began", "outage_ended")
    assert "dead_letter" not in service.said


def test_poison_among_good_tasks_dies(url: str) -> None:
    service = Service(url)
    service.away = False
    service.enqueue(range(-6, 40))
    assert drain(service.app, timeout_s=90, wait_s=30) == {"done": 40, "dead": 6}
    assert dead(url) == ["attempts_exhausted"] * 6
    assert {service.calls[n] for n in range(40)} == {1}
    # Those that failed before the first good ones were recorded may not count
    assert min(service.calls[n] for n in range(-6, 0)) >= 3


def test_it_can_be_turned_off(url: str) -> None:
    service = Service(url)
    service.enqueue(range(20))
    with Control(url) as control:
        control.queues.change("queue", "default", {"smart_retry": False})
    assert drain(service.app, timeout_s=90, wait_s=30) == {"dead": 20}
    assert set(service.calls.values()) == {3}


@pytest.mark.parametrize("tasks", [1, 4])
def test_a_few_tasks_that_fail_are_at_fault_themselves(url: str, tasks: int) -> None:
    service = Service(url)
    service.enqueue(range(tasks))
    assert drain(service.app, timeout_s=90, wait_s=30) == {"dead": tasks}


async def test_the_failures_of_all_workers_are_one_outage(url: str) -> None:
    """Two or so on each. The second attempt, which would be the last, ends when all know."""
    first: Counter[int] = Counter()
    done: list[int] = []
    known, away = asyncio.Event(), True

    def an_app() -> late.App:
        app = late.App(url)

        @app.task(retry=late.Retry(max_attempts=2, base=0.02, cap=0.02))
        async def store(ctx: late.AsyncContext, number: int) -> None:
            first[number] += 1
            if ctx.attempt == 2:
                await known.wait()
            if away:
                raise ConnectionError("the warehouse is away")
            done.append(number)

        return app

    apps = [an_app() for _ in range(3)]
    async with working(*apps) as workers:
        commit(url, apps[0], [apps[0].tasks["store"].call(n) for n in range(6)])
        await until(lambda: all(first[n] > 1 for n in range(6)))

        def know() -> bool:
            outages = [worker.scheduler.limits.outages for worker in workers]
            # A time of long ago would say that the clock was set back.
            now_us = time.time_ns() // 1_000
            return all(each.names(now_us) for each in outages if each.watches)

        await until(know)
        known.set()
        await until(lambda: min(first.values()) > 3)
        away = False
        await until(lambda: sorted(done) == list(range(6)))
    assert await asyncio.to_thread(dead, url) == []
