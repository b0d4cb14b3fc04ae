"""Knobs on a running worker, on every store: set, followed, audited, taken back."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import late
from late.app.backpressure import look
from late.config import WorkerConfig
from late.control import Control
from late.errors import ConfigError, InvalidName, InvalidPolicy, QueueFull
from late.model.queue_settings import QueueSettings
from late.model.worker_report import WorkerReport
from late.outbox import connect
from late.worker.watch.reporter import report_of
from late.worker.worker import Worker
from tests.integration.control_kit import execute, rows
from tests.integration.test_worker import until, until_read
from tests.support.leases import LONG_LEASES

QUICK = WorkerConfig(poll_max_s=0.05, grace_s=60.0, **LONG_LEASES)


def test_knobs_are_kept_audited_and_taken_back(url: str) -> None:
    with Control(url) as control:
        assert control.queues.settings() == []
        first = control.queues.change("queue", "payments", {"rate": 50, "concurrency": 4})
        control.queues.change("queue", "payments", {"paused": True})
        control.queues.change("target", "billing", {"breaker": 0.3})
        live = control.queues.live()
        assert live.queues == {"payments": QueueSettings(rate=50.0, concurrency=4, paused=True)}
        assert live.targets == {"billing": QueueSettings(breaker=0.3)}
        [set_] = control.queues.settings("queue")
        assert (set_.name, set_.version) == ("payments", 2)

        dry = control.queues.change("queue", "payments", {"rate": 5}, dry_run=True)
        assert (dry.after.rate, dry.audit_id) == (5.0, None)
        assert control.queues.live() == live
        same = control.queues.change("queue", "payments", {"rate": 50})
        assert same.audit_id is None, "nothing changed, so nothing is audited"

        assert first.audit_id is not None
        back = control.queues.rollback(first.audit_id)
        assert back.after == QueueSettings(paused=True), "a later change of another knob stays"
        control.queues.change("queue", "payments", {"paused": None})
        assert control.queues.live().queues == {}
        actions = [(entry.action, entry.subject) for entry in control.audit.entries()]
        assert actions == [
            ("queue.set", "queue:payments"),
            ("queue.rollback", "queue:payments"),
            ("target.set", "target:billing"),
            ("queue.set", "queue:payments"),
            ("queue.set", "queue:payments"),
        ]


def test_what_is_wrong_changes_nothing(url: str) -> None:
    with Control(url) as control:
        with pytest.raises(InvalidPolicy, match="rate must be"):
            control.queues.change("queue", "payments", {"rate": -1})
        with pytest.raises(InvalidName):
            control.queues.change("queue", "pay ments", {"rate": 1})
        with pytest.raises(ConfigError, match="no change"):
            control.queues.rollback("nobody")
        assert control.queues.settings() == []
        assert control.audit.entries() == []


async def test_a_running_worker_follows(url: str) -> None:
    app, ran = late.App(url), Counter[str]()

    @app.task(queue="slow")
    async def held(n: int) -> None:
        ran["held"] += 1

    @app.task(queue="free")
    async def free(n: int) -> None:
        ran["free"] += 1

    def turn(**changes: object) -> None:
        with Control(url) as control:
            control.queues.change("queue", "slow", changes)

    await asyncio.to_thread(turn, paused=True)
    with connect(url) as tx:
        app.enqueue_many(tx, [held.call(n) for n in range(20)])
        app.enqueue_many(tx, [free.call(n) for n in range(20)])
    worker = Worker(app, settings=QUICK)
    await worker.start()
    try:
        await until(lambda: ran["free"] == 20)
        assert ran["held"] == 0, "a pause holds from the first start on"
        await asyncio.to_thread(turn, paused=None)
        await until(lambda: ran["held"] == 20)
    finally:
        worker.ask_to_stop()
        await worker.wait()


async def test_a_queue_whose_breaker_is_open_is_named(url: str) -> None:
    app = late.App(url)

    @app.task(queue="partner", retry=late.Retry(max_attempts=9, base=60))
    async def sync(n: int) -> None:
        raise OSError("HTTP 500")

    def told() -> WorkerReport:
        return report_of(worker)

    with Control(url) as control:
        control.queues.change("queue", "partner", {"breaker": 0.5, "breaker_calls": 4})
    worker = Worker(app, settings=QUICK)
    await worker.start()
    try:
        with connect(url) as tx:
            app.enqueue_many(tx, [sync.call(n) for n in range(20)])
        await until(lambda: told().circuits)
        [circuit] = told().circuits
        assert (circuit.queue, circuit.failed >= 4) == ("partner", True)
        assert "OSError: HTTP 500" in circuit.error
    finally:
        worker.ask_to_stop()
        await worker.wait()


async def test_a_group_skips_what_is_too_old_and_others_run_it(url: str) -> None:
    app, ran = late.App(url), Counter[str]()

    @app.task
    async def work(ctx: late.AsyncContext, n: int) -> None:
        ran[ctx.group] += 1

    with Control(url) as control:
        control.groups.create("quick", start="beginning", max_age_s=1)
        with connect(url) as tx:
            app.enqueue_many(tx, [work.call(n) for n in range(5)])
        begun_us = control.now()
        await until(lambda: control.now() >= begun_us + 1_000_000)  # by the database's clock
        worker = Worker(app, settings=QUICK, groups=("default", "quick"))
        await worker.start()
        try:
            assert worker.scheduler.limits.max_ages_us == {"quick": 1_000_000}
            await until(lambda: ran["default"] == 5)
            await until_read(lambda: not any(q.waiting for q in control.status.read().queues))
            assert ran["quick"] == 0
            found = control.status.usage_since(0, {}).usage
            skipped = {group for group, each in found if each.outcome == "expired"}
            assert skipped == {"quick"}
            assert sum(each.count for _, each in found if each.outcome == "expired") == 5
            assert control.verify().problems == ()
            await asyncio.to_thread(control.groups.change, "quick", {"max_age_s": None})
            await until(lambda: worker.scheduler.limits.max_ages_us == {})
        finally:
            worker.ask_to_stop()
            await worker.wait()
        assert control.verify().problems == ()


async def test_a_worker_does_not_run_with_knobs_that_it_cannot_read(url: str) -> None:
    execute(
        url,
        "insert into late_queue (name, knobs, version, updated_at_us)"
        " values ('q', '{\"colour\": 1}', 1, 1)",
    )
    with pytest.raises(InvalidPolicy, match="cannot be read"):
        await Worker(late.App(url), settings=QUICK).start()


def test_a_producer_follows_what_is_closed_or_full(url: str) -> None:
    app = late.App(url)

    @app.task(queue="mail")
    def send(n: int) -> None: ...

    @app.task(queue="bulk")
    def sweep(n: int) -> None: ...

    def enqueue(count: int) -> None:
        with connect(url) as tx:
            app.enqueue_many(tx, [send.call(n) for n in range(count)])

    with Control(url) as control:
        look(app, control)
        with connect(url) as tx:  # what lies before it in every shard is not to hide it
            app.enqueue_many(tx, [sweep.call(n) for n in range(400)])
        enqueue(10)
        control.queues.change("queue", "mail", {"max_backlog": 10})
        look(app, control)
        with pytest.raises(QueueFull, match="holds 10 tasks, its bound is 10"):
            enqueue(1)
        control.queues.change("queue", "mail", {"max_backlog": 11})
        look(app, control)
        enqueue(1)
        control.queues.change("queue", "mail", {"closed": True})
        look(app, control)
        with pytest.raises(QueueFull, match="is closed"):
            enqueue(1)
        control.queues.change("queue", "mail", {"closed": None, "max_backlog": None})


def test_following_sees_a_closed_queue_before_the_first_task(url: str) -> None:
    app = late.App(url)

    @app.task(queue="mail")
    def send(n: int) -> None: ...

    with Control(url) as control:
        control.queues.change("queue", "mail", {"closed": True})
    with app.follow(), connect(url) as tx, pytest.raises(QueueFull):
        send.enqueue(tx, 1)


async def test_a_worker_publishes_what_is_full(url: str) -> None:
    app = late.App(url)

    @app.task(queue="mail")
    def send(n: int) -> None: ...

    @app.task(queue="other")
    def other(n: int) -> None: ...

    def published() -> list[tuple[object, ...]]:
        return rows(url, "select name, held, bound from late_full order by name")

    with Control(url) as control:
        control.queues.change("queue", "mail", {"max_backlog": 3, "paused": True})
        control.queues.change("queue", "other", {"rate": 100})
    with connect(url) as tx:
        app.enqueue_many(tx, [send.call(n) for n in range(3)] + [other.call(1)])
    worker = Worker(app, settings=QUICK)
    await worker.start()
    try:
        await until(lambda: published() == [("mail", 3, 3)])
        with Control(url) as control:
            control.queues.change("queue", "mail", {"paused": None})
        await until(lambda: published() == [])
    finally:
        worker.ask_to_stop()
        await worker.wait()


async def test_a_time_out_by_knob_ends_what_its_handler_would_not(url: str) -> None:
    app = late.App(url)

    @app.task(queue="long", retry=late.Retry(max_attempts=1), timeout_s=300)
    async def long() -> None:
        await asyncio.sleep(300)

    with Control(url) as control:
        control.queues.change("queue", "long", {"timeout_s": 0.2})
    with connect(url) as tx:
        long.enqueue(tx)
    worker = Worker(app, settings=QUICK)
    await worker.start()
    try:
        with Control(url) as control:
            await until_read(lambda: len(control.dead_letters.find()) == 1)
            [letter] = control.dead_letters.find()
    finally:
        worker.ask_to_stop()
        await worker.wait()
    assert "timed out after 0.2 s" in letter.errors[-1].error


async def test_a_limit_holds_in_a_worker(url: str) -> None:
    app, running, most = late.App(url), 0, 0

    @app.task(queue="narrow")
    async def narrow(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    with Control(url) as control:
        control.queues.change("queue", "narrow", {"concurrency": 2})
    with connect(url) as tx:
        app.enqueue_many(tx, [narrow.call(n) for n in range(60)])
    worker = Worker(app, settings=QUICK)
    await worker.start()
    try:
        await until(lambda: worker.dispatcher.ended == 60)
    finally:
        worker.ask_to_stop()
        await worker.wait()
    assert most == 2
