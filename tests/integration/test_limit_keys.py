"""Limits per key with two workers: exact in the fleet, and no key waits for another one."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import late
from late.config import WorkerConfig
from late.control import Control
from late.outbox import connect
from late.worker.worker import Worker
from tests.integration.shared_kit import business, business_file
from tests.integration.test_worker import until, until_read
from tests.support.leases import LONG_LEASES

QUICK = WorkerConfig(poll_max_s=0.05, grace_s=60.0, **LONG_LEASES)
SHOPS = [f"shop-{n}" for n in range(6)]


@pytest.fixture(params=["postgresql", "sqlite"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of one of the two stores: the others differ in nothing that matters here."""
    with business() if request.param == "postgresql" else business_file(tmp_path) as made:
        yield made


class Calls:
    """What runs and what has ended, by shop. Shop 0 waits until it is let go."""

    def __init__(self) -> None:
        self.running, self.most, self.done = Counter[str](), Counter[str](), Counter[str]()
        self.go = threading.Event()
        self._lock = threading.Lock()

    def run(self, shop: str) -> None:
        with self._lock:
            self.running[shop] += 1
            self.most[shop] = max(self.most[shop], self.running[shop])
        if shop == SHOPS[0]:
            assert self.go.wait(120.0)
        with self._lock:
            self.running[shop] -= 1
            self.done[shop] += 1


async def test_two_workers_run_no_more_of_a_key_than_its_limit(url: str) -> None:
    app, calls = late.App(url), Calls()

    @app.task(queue="shops")
    def sync(shop: str) -> None:
        calls.run(shop)

    with Control(url) as control:
        await asyncio.to_thread(control.queues.change, "queue", "shops", {"key_concurrency": 2})
        workers = [Worker(app, settings=QUICK) for _ in range(2)]
        for worker in workers:
            await worker.start()
        try:
            await until(lambda: all(worker.scheduler.cores for worker in workers))
            with connect(url) as tx:
                app.enqueue_many(
                    tx,
                    [sync.options(limit_key=s).call(s) for s in SHOPS for _ in range(8)],
                )
            await until(lambda: all(calls.done[shop] == 8 for shop in SHOPS[1:]))
            await until(lambda: calls.running[SHOPS[0]] == 2)
            assert calls.done[SHOPS[0]] == 0
            calls.go.set()
            await until(lambda: calls.done == dict.fromkeys(SHOPS, 8))
        finally:
            calls.go.set()
            for worker in workers:
                worker.ask_to_stop()
            for worker in workers:
                await worker.wait()
    assert max(calls.most.values()) == 2


async def test_the_status_names_the_key_that_holds_back(url: str) -> None:
    app, calls = late.App(url), Calls()

    @app.task(queue="shops")
    def sync(shop: str) -> None:
        calls.run(shop)

    with Control(url) as control:
        await asyncio.to_thread(control.queues.change, "queue", "shops", {"key_concurrency": 2})
        with connect(url) as tx:
            app.enqueue_many(tx, [sync.options(limit_key=SHOPS[0]).call(SHOPS[0])] * 5)
        worker = Worker(app, settings=QUICK)
        await worker.start()
        try:
            await until_read(lambda: control.status.read().limited_keys)
            [found] = control.status.read().limited_keys
            assert found.text == "key shop-0, 2 of 2 running, 3 wait"
            assert not control.status.read(queue="other").limited_keys
        finally:
            calls.go.set()
            worker.ask_to_stop()
            await worker.wait()
