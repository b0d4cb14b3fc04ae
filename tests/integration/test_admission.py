"""Every producer is refused in its own transaction, without `follow()`, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

import late
from late.app.backpressure import publish
from late.control import Control
from late.errors import QueueFull
from late.model.admission import Full
from late.outbox import admission, connect, connect_async
from late.schema.engine import make_engine
from late.store import open_store
from late.store.base import cursor_within
from tests.conformance.kit import dead, open_of, own, parked, task
from tests.databases import PRESENT
from tests.integration.control_kit import execute, insert, rows

TWO_AT_ONCE = [backend for backend in PRESENT if backend.name in ("sqlite", "postgres")]
"""The emulator of Spanner has one transaction at a time."""


class Shop:
    """One service, which follows nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = app = late.App(url)

        @app.task(queue="mail")
        def send(n: int) -> None: ...

        @app.task(queue="bulk")
        def sweep(n: int) -> None: ...

        self.send, self.sweep = send, sweep

    def put(self, *calls: Any) -> None:
        with connect(self.url) as tx:
            if len(calls) == 1:
                self.app.enqueue(tx, calls[0])
            else:
                self.app.enqueue_many(tx, calls)

    def count(self, name: str = "send") -> int:
        return len(rows(self.url, f"select task_id from late_task where name = '{name}'"))


@pytest.fixture
def shop(url: str) -> Shop:
    return Shop(url)


@pytest.fixture
def control(url: str) -> Iterator[Control]:
    with Control(url) as made:
        yield made


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Spanner, where an app looks once a second, each transaction looks."""
    monkeypatch.setattr(admission, "LOOK_S", 0.0)


def close(control: Control, queue: str = "mail") -> None:
    control.queues.change("queue", queue, {"closed": True})


def test_a_closed_queue_takes_nothing_until_it_is_opened(shop: Shop, control: Control) -> None:
    shop.put(shop.send.call(1))
    close(control)
    with pytest.raises(QueueFull, match="queue 'mail' is closed: it takes no new tasks"):
        shop.put(shop.send.call(2))
    with pytest.raises(QueueFull, match="is closed"):
        shop.put(shop.send.call(2), shop.send.call(3))
    with pytest.raises(QueueFull, match="is closed"):
        shop.put(shop.sweep.call(1), shop.send.call(2))
    shop.put(shop.sweep.call(1))
    assert (shop.count(), shop.count("sweep")) == (1, 1)
    control.queues.change("queue", "mail", {"closed": None})
    shop.put(shop.send.call(2))
    assert shop.count() == 2


def test_the_caller_may_go_on_in_its_transaction(shop: Shop, control: Control) -> None:
    close(control)
    with connect(shop.url) as tx:
        with pytest.raises(QueueFull) as refused:
            shop.send.enqueue(tx, 1)
        error = refused.value
        assert (error.queue, error.limit_key, error.bound) == ("mail", None, 0)
        with pytest.raises(QueueFull):
            shop.app.enqueue_many(tx, [shop.sweep.call(1), shop.send.call(1)])
        shop.sweep.enqueue(tx, 2)
    assert (shop.count(), shop.count("sweep")) == (0, 1)


async def test_an_async_transaction(shop: Shop, control: Control) -> None:
    close(control)
    async with connect_async(shop.url) as tx:
        with pytest.raises(QueueFull):
            await shop.send.enqueue(tx, 1)
        await shop.sweep.enqueue(tx, 2)
    assert (shop.count(), shop.count("sweep")) == (0, 1)


def test_a_session_of_sqlalchemy(shop: Shop, control: Control) -> None:
    close(control)
    engine = make_engine(shop.url)
    try:
        with Session(engine) as session, session.begin():
            with pytest.raises(QueueFull):
                shop.send.enqueue(session, 1)
            with pytest.raises(QueueFull):
                shop.app.enqueue_many(session, [shop.send.call(n) for n in range(60)])
            shop.app.enqueue_many(session, [shop.sweep.call(n) for n in range(60)])
    finally:
        engine.dispose()
    assert (shop.count(), shop.count("sweep")) == (0, 60)


def test_tasks_with_keys_of_each_kind(shop: Shop, control: Control) -> None:
    shop.put(shop.send.options(unique_key="a").call(1))
    close(control)
    with connect(shop.url) as tx:
        for options in (
            {"ordering_key": "k"},
            {"unique_key": "b"},
            {"unique_key": "b", "ordering_key": "k"},
            {"unique_key": "a", "on_conflict": "replace"},
            {"limit_key": "k"},
        ):
            with pytest.raises(QueueFull):
                shop.send.options(**options).enqueue(tx, 1)
    assert shop.count() == 1
    held = rows(shop.url, "select unique_key from late_unique")
    assert held == [("a",)], "what was refused holds no key"
    control.queues.change("queue", "mail", {"closed": None})
    shop.put(shop.send.options(ordering_key="k").call(1), shop.send.options(unique_key="b").call(1))
    assert shop.count() == 3


def test_a_workflow_is_refused_if_one_of_its_queues_is(shop: Shop, control: Control) -> None:
    close(control)
    with connect(shop.url) as tx, pytest.raises(QueueFull):
        shop.app.enqueue_workflow(tx, late.chain(shop.sweep.call(1), shop.send.call(1)))
    assert rows(shop.url, "select task_id from late_stage") == []
    assert shop.count("sweep") == 0


def test_commands_are_never_refused(shop: Shop, control: Control) -> None:
    with connect(shop.url) as tx:
        task_id = shop.send.enqueue(tx, 1)
    close(control)
    with connect(shop.url) as tx:
        shop.app.cancel(tx, task_id)
    assert shop.count("late.cancel") == 1


def test_a_full_queue_is_refused_as_long_as_a_worker_says_so(shop: Shop, control: Control) -> None:
    """The publisher is driven by hand: what comes in between two counts is the slack."""
    control.queues.change("queue", "mail", {"max_backlog": 10})
    others = [Shop(shop.url) for _ in range(3)]
    for each in [shop, *others]:  # 12 before the first count: three each
        each.put(*[each.send.call(n) for n in range(3)])
    publish(control, control.queues.live(), ["default"])
    for each in [shop, *others]:
        with pytest.raises(QueueFull, match="queue 'mail' holds 12 tasks, its bound is 10"):
            each.put(each.send.call(0))
    shop.put(shop.sweep.call(1))
    assert shop.count() == 12
    control.queues.change("queue", "mail", {"max_backlog": 20})
    shop.put(shop.send.call(0))
    publish(control, control.queues.live(), ["default"])
    assert control.queues.full() == []
    control.queues.change("queue", "mail", {"max_backlog": 13})
    publish(control, control.queues.live(), ["default"])
    assert [each.text for each in control.queues.full()] == [
        "queue 'mail' holds 13 tasks, its bound is 13"
    ]
    execute(shop.url, "update late_full set until_us = 1")
    shop.put(shop.send.call(0))
    assert shop.count() == 14, "the worker that counted is gone"


@pytest.mark.parametrize("backend", TWO_AT_ONCE, indirect=True, ids=lambda each: each.name)
def test_a_commit_in_flight_at_the_count_is_slack(shop: Shop, control: Control) -> None:
    control.queues.change("queue", "mail", {"max_backlog": 2})
    shop.put(shop.send.call(1))
    with connect(shop.url) as tx:
        shop.app.enqueue_many(tx, [shop.send.call(n) for n in range(3)])
        publish(control, control.queues.live(), ["default"])
        assert control.queues.full() == [], "nobody sees what has not committed"
    publish(control, control.queues.live(), ["default"])
    with pytest.raises(QueueFull, match="holds 4 tasks, its bound is 2"):
        shop.put(shop.send.call(1))


async def test_workers_of_different_groups_count_the_same(shop: Shop, control: Control) -> None:
    control.queues.change("queue", "mail", {"max_backlog": 2})
    control.groups.create("audit", queues=["bulk"], start="now")
    shop.put(*[shop.send.call(n) for n in range(2)])
    live = control.queues.live()
    publish(control, live, ["audit"])
    assert control.queues.full() == [], "nobody works the group that reads it"
    store = open_store(shop.url)
    await store.open()
    await own(store, 1)
    await store.close()
    for groups in (["default"], ["audit"], ["default"]):
        publish(control, live, groups)
        assert [each.held for each in control.queues.full()] == [2], groups


def test_knobs_that_older_code_has_changed_are_followed(shop: Shop, control: Control) -> None:
    close(control)
    execute(shop.url, "update late_queue set knobs = '{}' where name = 'mail'")
    publish(control, control.queues.live(), ["default"])
    shop.put(shop.send.call(1))
    shut = """update late_queue set knobs = :knobs where name = 'mail'"""
    execute(shop.url, shut, knobs='{"closed":true}')
    publish(control, control.queues.live(), ["default"])
    with pytest.raises(QueueFull):
        shop.put(shop.send.call(1))
    # A publisher with old knobs does not open a queue that was just closed.
    live = control.queues.live()
    close(control, "bulk")
    publish(control, live, ["default"])
    with pytest.raises(QueueFull):
        shop.put(shop.sweep.call(1))


def test_a_deleted_queue_and_an_undone_change_are_open(shop: Shop, control: Control) -> None:
    change = control.queues.change("queue", "mail", {"closed": True})
    control.queues.rollback(str(change.audit_id))
    shop.put(shop.send.call(1))
    close(control, "gone")
    control.queues.delete("gone", force=True)
    assert control.queues.full() == []


def test_an_older_schema_refuses_nothing(shop: Shop) -> None:
    execute(shop.url, "drop table late_full")
    execute(shop.url, "update late_meta set value = '0017' where key = 'schema_version'")
    with connect(shop.url) as tx:
        shop.send.enqueue(tx, 1)
        shop.send.enqueue(tx, 2)
        shop.app.enqueue_many(tx, [shop.send.call(n) for n in range(3)])
        shop.send.options(unique_key="a", ordering_key="k").enqueue(tx, 3)
    assert shop.count() == 6


@pytest.mark.parametrize("knob", ["max_backlog", "key_backlog"])
async def test_what_is_open_or_parked_counts_and_a_dead_letter_does_not(
    shop: Shop, control: Control, knob: str
) -> None:
    mine = [task(3, queue="mail", name="send", headers='{"limit_key":"a"}') for _ in range(6)]
    insert(shop.url, *mine)
    store = open_store(shop.url)
    await store.open()
    owner = await own(store, 3)
    (page,) = await store.read({3: ""}, 100)
    read, due = page.records, await store.now() + 10**9
    await owner.settle(
        cursor=cursor_within(page.window, read[4]),
        open=(open_of(read[0]),),
        parked=(parked(due, of=read[1]), parked(due, of=read[2], reason="retry")),
        dead=(dead(of=read[3]),),  # and the next one is done
    )
    await store.close()
    name = "mail" if knob == "max_backlog" else "mail a"
    for bound, full in ((5, False), (4, True)):
        control.queues.change("queue", "mail", {knob: bound})
        publish(control, control.queues.live(), ["default"])
        held = [Full(name, 4, 4)] if full else []
        assert control.queues.full() == held, "one waits, one is open, two are parked"
    with pytest.raises(QueueFull, match="holds 4 tasks"):
        shop.put(shop.send.options(limit_key="a").call(1))


def test_each_limit_key_has_a_bound(shop: Shop, control: Control) -> None:
    control.queues.change("queue", "mail", {"key_backlog": 3})
    of = {name: shop.send.options(limit_key=name) for name in ("a", "b")}
    shop.put(*[of["a"].call(n) for n in range(3)], *[of["b"].call(n) for n in range(2)])
    shop.put(shop.send.call(1), shop.sweep.options(limit_key="a").call(1))
    publish(control, control.queues.live(), ["default"])
    why = "limit key 'a' of queue 'mail' holds 3 tasks, its bound is 3"
    for calls in ([of["a"].call(9)], [of["b"].call(9), of["a"].call(9), shop.send.call(9)]):
        with pytest.raises(QueueFull, match=why) as refused:
            shop.put(*calls)
        error = refused.value
        assert (error.queue, error.limit_key, error.held, error.bound) == ("mail", "a", 3, 3)
    shop.put(shop.sweep.options(limit_key="a").call(1))
    shop.put(of["b"].call(9), shop.send.call(9))
    publish(control, control.queues.live(), ["default"])
    assert [each.name for each in control.queues.full()] == ["mail a", "mail b"]
    control.queues.change("queue", "mail", {"key_backlog": None})
    assert control.queues.full() == []
    shop.put(of["a"].call(9))
