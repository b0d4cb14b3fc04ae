"""A lane that is resized while it works: order by key, nothing lost, on every store."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert

import late
from late.config import WorkerConfig
from late.control import Control
from late.errors import ConfigError
from late.model.ids import shard_of
from late.model.lanes import Gate, Lane, place
from late.model.task import Options
from late.outbox import connect
from late.schema.engine import make_engine, write
from late.schema.tables import lease
from late.testing import drain
from late.worker.worker import Worker
from tests.conformance.backends import Backend

QUICK = WorkerConfig(poll_max_s=0.05, lease_ttl_s=5.0, grace_s=5.0)


@pytest.fixture
def control(url: str) -> Any:
    with Control(url) as made:
        yield made


async def until(condition: Callable[[], Any], limit_s: float = 120.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 (it is in a database)
            await asyncio.sleep(0.02)


class Service:
    """Two workers that write down when the tasks of each key run, and producers."""

    def __init__(self, url: str, lane: str) -> None:
        self.url = url
        self.lane = lane
        self.began: dict[str, list[int]] = defaultdict(list)
        self.ended: dict[str, list[int]] = defaultdict(list)
        self.beside: list[str] = []
        self.workers = [self._worker(n) for n in range(2)]

    def app(self) -> late.App:
        """As one process has it: it learns of a resize by itself."""
        app = late.App(self.url)

        @app.task(lane=self.lane)
        async def note(key: str, n: int) -> None:
            if len(self.began[key]) > len(self.ended[key]):
                self.beside.append(key)
            self.began[key].append(n)
            await asyncio.sleep(random.random() * 0.01)
            self.ended[key].append(n)

        return app

    def _worker(self, n: int) -> Worker:
        worker = Worker(self.app(), settings=QUICK)
        worker.settings_sync._every_s = 0.2  # seconds of the test, not of what it shows
        return worker

    async def __aenter__(self) -> Service:
        for worker in self.workers:
            await worker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            await worker.stop()

    def produce(self, keys: list[str], rounds: range) -> None:
        """One transaction after the other, in the order of `rounds`."""
        app = self.app()
        note = app.tasks["note"]
        for n in rounds:
            with connect(self.url) as tx:
                calls = [note.options(ordering_key=key).call(key, n) for key in keys]
                app.enqueue_many(tx, [*calls, note.call("none", n)])

    def count(self) -> int:
        return sum(len(ran) for key, ran in self.ended.items() if key != "none")


def drained(control: Control) -> bool:
    return not any(lane.draining for lane in control.lanes.all())


async def resized_under_load(
    url: str, control: Control, widths: tuple[int, int, int], *, rounds: int, lane: str
) -> Service:
    """Two resizes, while two producers write and two workers run."""
    service = Service(url, lane)
    control.lanes.resize(lane, widths[0])
    mine, theirs = [f"a{n}" for n in range(12)], [f"b{n}" for n in range(12)]
    async with service:
        await until(lambda: drained(control))
        threads = [
            threading.Thread(target=service.produce, args=(keys, range(rounds)))
            for keys in (mine, theirs)
        ]
        for thread in threads:
            thread.start()
        await until(lambda: service.count() > 24)
        await asyncio.to_thread(control.lanes.resize, lane, widths[1])
        await until(
            lambda: (
                control.lanes.layout().extents == () or control.lanes.layout().extents[0].closings
            )
        )
        await asyncio.to_thread(control.lanes.resize, lane, widths[2])
        await until(lambda: not any(thread.is_alive() for thread in threads))
        await until(lambda: service.count() >= 24 * rounds and drained(control))
    return service


async def test_keys_keep_their_order_4_64_8(url: str, backend: Backend, control: Control) -> None:
    if not backend.resizes:
        with pytest.raises(ConfigError, match="could lose their order"):
            control.lanes.resize("default", 4)
        return
    # An emulator has one transaction at a time.
    widths, rounds = ((2, 6, 3), 4) if backend.emulated else ((4, 64, 8), 30)
    await keys_keep_their_order(url, control, widths, rounds, "default")


async def test_keys_keep_their_order_in_another_lane(
    url: str, backend: Backend, control: Control
) -> None:
    if backend.resizes:
        control.lanes.create("bulk", 1)
        rounds = 3 if backend.emulated else 10
        await keys_keep_their_order(url, control, (2, 6, 3), rounds, "bulk")


async def keys_keep_their_order(
    url: str, control: Control, widths: tuple[int, int, int], rounds: int, lane: str
) -> None:
    service = await resized_under_load(url, control, widths, rounds=rounds, lane=lane)
    wanted = list(range(rounds))
    orders = {key: ran for key, ran in service.began.items() if key != "none"}
    assert {key: ran for key, ran in orders.items() if ran != wanted} == {}
    assert len(orders) == 24
    assert service.beside.count("none") == len(service.beside), "two of a key at once"
    assert sorted(service.ended["none"]) == sorted(wanted * 2), "tasks without a key are not lost"
    assert control.verify().problems == ()
    # What the lane had and is empty is nobody's business any more.
    shards = {shard.shard_id for shard in control.status.read().shards}
    [first] = [each.first_shard for each in control.lanes.all() if each.name == lane]
    assert shards >= set(range(first, first + widths[2]))
    checks = {check.name: check.result for check in control.doctor()}
    assert (checks["resizes"], checks["lanes"]) == ("ok", "ok")


def test_a_producer_learns_of_the_resize_in_its_own_transaction(
    url: str, backend: Backend, control: Control
) -> None:
    if not backend.resizes:
        return
    app = late.App(url)

    @app.task
    def note(n: int) -> None: ...

    control.lanes.resize("default", 3)
    assert app.lane.shards == 8
    with connect(url) as tx:
        ids = app.enqueue_many(
            tx, [note.options(ordering_key=f"k{n}").call(n) for n in range(6)] + [note.call(6)]
        )
        [unique] = app.enqueue_many(tx, [note.options(ordering_key="k1", unique_key="u").call(7)])
    assert (app.lane.shards, app.lane.version) == (3, 1)
    assert [shard_of(each) for each in ids[:6]] == [app.shard_of(f"k{n}") for n in range(6)]
    assert shard_of(unique) == app.shard_of("k1")
    shown = control.tasks.show(ids[0])
    assert shown.options == {"ordering_key": "k0", "layout": 1}
    assert drain(app) == {"done": 8}


def test_a_database_that_lost_the_resize_is_written_by_what_it_has(
    url: str, backend: Backend, control: Control
) -> None:
    if not backend.resizes:
        return
    app = late.App(url, shards=5)

    @app.task
    def note(n: int) -> None: ...

    app.adopt(Lane(shards=3, version=1))
    with connect(url) as tx:
        ids = [note.options(ordering_key=f"k{n}").enqueue(tx, n) for n in range(6)]
        ids.append(note.options(ordering_key="k1", unique_key="u").enqueue(tx, 6))
    wanted = [place(f"k{n}", 0, 5) for n in (*range(6), 1)]
    assert [shard_of(each) for each in ids] == wanted
    assert control.tasks.show(ids[0]).options == {"ordering_key": "k0"}
    assert drain(app) == {"done": 7}


def test_a_worker_that_knows_of_no_resize_runs_nothing_of_it(
    url: str, backend: Backend, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not backend.resizes:
        return
    gate = Gate()
    assert not gate.opens("default", 0, "k", Options(layout=1).layout)
    control.lanes.resize("default", 3)
    gate.set(control.lanes.layout())
    assert not gate.opens("default", 0, "k", 1), "no worker has looked at the old shards"
    with pytest.raises(ConfigError, match="resized a moment ago"):
        control.lanes.resize("default", 5)
    [lane] = control.lanes.all()
    assert (lane.shards, lane.version, lane.draining[0].state) == (3, 1, "closing")
    assert {check.name: check.result for check in control.doctor()}["resizes"] == "ok"
    monkeypatch.setattr("late.control.lanes.lanes.DRAIN_US", -1)
    [found] = [check for check in control.doctor() if check.name == "resizes"]
    assert found.result == "warning"
    assert "version 0 of lane default" in found.detail
    assert "no worker" in found.detail


def test_a_group_that_begins_behind_the_mark_does_not_hold_it_up(
    url: str, backend: Backend, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not backend.resizes or backend.emulated:  # slow there, and no other code
        return
    monkeypatch.setattr("late.control.lanes.resize.UNREAD_AFTER_US", 0)
    control.lanes.resize("default", 2)
    for _ in range(100):  # whoever looks; PostgreSQL is asked twice what still runs
        control.lanes.advance()
        if control.lanes.layout().extents[0].closings:
            break
    control.groups.reset("default", "now")
    control.lanes.advance()
    control.lanes.advance()
    assert drained(control)


def test_a_width_that_cannot_be_is_refused(url: str, backend: Backend, control: Control) -> None:
    for shards in (0, 4097) if backend.resizes else ():
        with pytest.raises(ConfigError, match="room for 1 to 4096 shards"):
            control.lanes.resize("default", shards)


def test_what_a_lane_had_and_is_empty_is_not_shown(
    url: str, backend: Backend, control: Control
) -> None:
    if backend.emulated:  # slow there, and no other code
        return
    gone = insert(lease).values(consumer_group="default", shard_id=60, owner=None, epoch=3)
    engine = make_engine(url)
    write(engine, lambda connection: connection.execute(gone))
    engine.dispose()
    assert [shard.shard_id for shard in control.status.read().shards] == list(range(8))
    [found] = [check for check in control.doctor() if check.name == "leases"]
    assert "0 of 8" in found.detail
