"""A database in the middle of an ordinary afternoon: some of everything that a screen can show.

Eight shards: six belong to two workers that are alive, one to a worker that has vanished, one to
nobody. Two queues fail now and then, one is paused, one has dead letters of two kinds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from late import outbox
from late.control import Control, audit
from late.model.histogram import bucket
from late.model.ids import new_id, shard_of
from late.model.task import ENQUEUED, AttemptError, NewTask, Record, Schedule, TaskId, Usage
from late.model.worker_report import ConflictReport, WorkerReport
from late.schema import migrate
from late.schema.engine import make_engine, writing
from late.schema.tables import controller, decision, stage
from late.store import open_store
from late.store.base import Store, cursor_within
from tests.conformance.kit import Owner, dead, open_of, parked, task, worker
from tests.integration.control_kit import execute

SECOND = 1_000_000
MINUTE = 60 * SECOND
ALIVE_S = 86_400.0
QUEUES = ("mail", "payments", "receipts", "search-index", "thumbnails")
NAMES = ("send", "charge", "print", "index", "shrink")
WORKERS = ("worker-a1", "worker-b2")
VANISHED = "worker-c3"
A_SHARD = 12
"""Tasks of each shard."""


PAST = 58
"""Minutes of `past`."""


@dataclass
class Scene:
    """What was put there, for those who look for it."""

    url: str
    records: dict[int, list[Record]] = field(default_factory=dict)
    dead: list[TaskId] = field(default_factory=list)
    parked: list[TaskId] = field(default_factory=list)
    waiting: list[TaskId] = field(default_factory=list)
    workflows: list[TaskId] = field(default_factory=list)
    """Of a hundred tasks in ten levels of ten; and of four, one of them a dead letter."""


def fill(url: str) -> Scene:
    """Make the schema in an empty database, and the scene in it; blocks."""
    migrate.upgrade(url)
    scene = Scene(url)
    with Control(url) as control:
        control.groups.create("audit", start="beginning")
        control.groups.create("reports", queues=["payments"], start="beginning")
        control.groups.pause("reports")
        asyncio.run(_work(scene))
        _flows(scene)
        _turn(control)
        _fought(control)
        control.schedules.sync([_schedule("nightly-report", "0 3 * * *", control.now()),
                                _schedule("sweep", "every 90s", control.now())])  # fmt: skip
    _autoscaled(url)
    return scene


def past(url: str) -> None:
    """Give the first shard an hour behind it: failures for eight minutes, waits after a worker's
    death, and knobs that somebody changed then; blocks."""
    asyncio.run(_past(url))


async def _past(url: str) -> None:
    store = open_store(url)
    await store.open()
    try:
        (lease,) = await store.acquire(WORKERS[0], [("default", 0)])  # type: ignore[list-item]
        owner, now, begun = Owner(store, lease), await store.now(), lease.seq
        for ago in range(PAST, 0, -1):
            await owner.settle(usage=tuple(_minute(ago)))
    finally:
        await store.close()
    shifts = {
        "update late_settlement set settled_at_us = :at + max(0, seq - :begun) * :minute where"
        " consumer_group = 'default' and shard_id = 0": {
            "at": now - (PAST + 1) * MINUTE, "begun": begun, "minute": MINUTE,
        },
        "update late_audit set at_us = :at where subject = 'queue:payments' and actor = 'eve'": {
            "at": now - 30 * MINUTE,
        },
        "update late_audit set at_us = :at where subject != 'queue:payments' or actor != 'eve'": {
            "at": now - 90 * MINUTE,
        },
        "update late_worker set started_at_us = :at where worker_id != :new": {
            "at": now - 130 * MINUTE, "new": WORKERS[1],
        },
        "update late_worker set started_at_us = :at where worker_id = :new": {
            "at": now - 11 * MINUTE, "new": WORKERS[1],
        },
        "update late_worker set expires_at_us = :at where worker_id = :old": {
            "at": now - 19 * MINUTE, "old": VANISHED,
        },
    }  # fmt: skip
    for statement, values in shifts.items():
        execute(url, statement, **values)


def _minute(ago: int) -> list[Usage]:
    """What one minute of that hour has counted."""
    arrived = 90 + ago * 37 % 23
    failed = 31 + ago * 13 % 9 if 38 <= ago <= 45 else ago * 7 % 3
    ended = arrived // 3 if 12 < ago <= 19 else arrived + (40 if 6 <= ago <= 11 else 0)
    wait = 90_000 + ago % 5 * 11_000 + (40 * SECOND * (19 - ago) if 11 <= ago <= 19 else 0)
    waiting = ((bucket(wait), ended),)
    slow = 400_000 if 11 <= ago <= 19 else 150_000
    busy = ((bucket(24_000), ended // 3), (bucket(40_000), ended // 2), (bucket(slow), ended // 9),
            (bucket(1_400_000), 1))  # fmt: skip
    return [
        Usage("mail", "send", "local", ENQUEUED, arrived),
        Usage("mail", "send", "local", "done", ended, ended, ended * 40_000, waiting=waiting,
              busy=busy),
        Usage("payments", "charge", "local", "retried", failed, failed, failed * 90_000,
              busy=((bucket(90_000), failed),)),
    ]  # fmt: skip


def _tasks(shard: int) -> list[NewTask]:
    numbers = range(shard * A_SHARD, (shard + 1) * A_SHARD)
    return [
        task(
            shard,
            b'{"order": %d, "amount": "12.50"}' % n,
            queue=QUEUES[n % len(QUEUES)],
            name=NAMES[n % len(NAMES)],
            headers='{"trace": "4bf92f3577b34da6"}',
        )
        for n in numbers
    ]


async def _work(scene: Scene) -> None:
    store = open_store(scene.url)
    await store.open()
    try:
        made = {shard: _tasks(shard) for shard in range(8)}
        _insert(scene.url, [each for tasks in made.values() for each in tasks])
        for name in (*WORKERS, VANISHED):
            await store.heartbeat(worker(name), ALIVE_S)
        for shard in range(7):
            name = VANISHED if shard == 6 else WORKERS[shard % 2]
            await _shard(scene, store, shard, name)
        await store.heartbeat(worker(VANISHED), 0.001)
    finally:
        await store.close()


def _flows(scene: Scene) -> None:
    """Two workflows, of which the log has the dead letter alone."""
    small = [new_id(2), scene.dead[3], new_id(4), new_id(5)]
    names = (("reserve", "done"), ("charge", "dead"), ("pack", "done"), ("ship", "waiting"))
    ids = [new_id(1) for _ in range(100)]
    rows = [
        _stage(ids[0], each, n, ("shrink", "done" if n < 35 else "waiting"),
               [*range(n - n % 10 - 10, n - n % 10)] if n >= 10 else [])
        for n, each in enumerate(ids)
    ] + [
        _stage(small[0], each, n, names[n], [[], [0], [0], [1, 2]][n])
        for n, each in enumerate(small)
    ]  # fmt: skip
    engine = make_engine(scene.url)
    try:
        with writing(engine) as connection:
            connection.execute(stage.insert(), rows)
    finally:
        engine.dispose()
    scene.workflows += [ids[0], small[0]]


def _stage(
    first: TaskId, task_id: TaskId, number: int, what: tuple[str, str], after: list[int]
) -> dict[str, object]:
    name, state = what
    return {
        "workflow_id": first, "stage": number, "task_id": task_id, "state": state, "name": name,
        "missing": len(after), "after": str(after), "next": "[]", "collects": 0,
        "shard_id": shard_of(task_id), "queue": "payments", "payload": b"{}",
    }  # fmt: skip


def _insert(url: str, tasks: list[NewTask]) -> None:
    engine = make_engine(url)
    try:
        with writing(engine) as connection:
            outbox.insert(connection, tasks)
    finally:
        engine.dispose()


async def _shard(scene: Scene, store: Store, shard: int, name: str) -> None:
    (lease,) = await store.acquire(name, [("default", shard)])  # type: ignore[list-item]
    owner = Owner(store, lease)
    (page,) = await store.read({shard: lease.cursor}, 100)  # type: ignore[dict-item]
    found = scene.records[shard] = list(page.records)
    now = await store.now()
    letters = [
        dead(of=each, attempts=len(errors), errors=errors)
        for each, errors in ((found[5], _declined(now, shard)), (found[6], _away(now, shard)))
    ]
    put_off = [
        parked(now + (5 + 3 * shard) * MINUTE, of=found[3], reason="retry"),
        parked(now + (60 + shard) * MINUTE, of=found[4], reason="delay"),
    ]
    usage = [
        Usage(each.queue, each.name, "local", outcome, 4, 4, (n + 2) * 300_000, payload_bytes=2_048)
        for n, each in enumerate(found[:5])
        for outcome in (("done", "retried") if n == 1 else ("done",))
    ]
    usage += _routed()
    await owner.settle(
        cursor=cursor_within(page.window, found[8]),
        open=(open_of(found[7]), open_of(found[8])),
        parked=tuple(put_off),
        dead=tuple(letters),
        usage=tuple(usage),
    )
    scene.dead += [each.record.task_id for each in letters]
    scene.parked += [each.record.task_id for each in put_off]
    scene.waiting += [each.task_id for each in found[9:]]


def _routed() -> list[Usage]:
    """The calls of a task on its way from Celery, as one shard counts them."""
    name, waits = "celery:send", ((bucket(40_000), 18), (bucket(900_000), 1))
    return [
        Usage("mail", "send", "local", ENQUEUED, 19),
        Usage("celery", name, "local", ENQUEUED, 20),
        Usage("celery", name, "local", "done", 19, 19, 190_000, waiting=waits),
        Usage("celery.link", name, "local", ENQUEUED, 2),
    ]


def _declined(now: int, shard: int) -> tuple[AttemptError, ...]:
    text = f"CardDeclined: card {4000 + shard} was declined by the bank"
    return tuple(AttemptError(n, now - (4 - n) * MINUTE, WORKERS[0], text) for n in (1, 2, 3))


def _away(now: int, shard: int) -> tuple[AttemptError, ...]:
    first = AttemptError(1, now - 9 * MINUTE, WORKERS[1], "TimeoutError: no answer in 5 s")
    text = "ConnectionRefusedError: [Errno 111] mail relay refused the connection"
    return (first, AttemptError(2, now - 7 * MINUTE, WORKERS[shard % 2], text))


def _fought(control: Control) -> None:
    """Two pairs of tasks get into each other's way; a third one did so before."""
    charge, refund = "late-foreground:charge", "late-foreground:refund"
    add, book = "update account set balance = balance + $1 where id = $2", "insert into booking"
    lines = (
        ConflictReport("waiting", charge, refund, "account(id=7)", f"/* tag={charge} */ {add}",
                       f"/* tag={refund} */ {add}", False, 1, 31.4, 42, 12.0, 18),
        ConflictReport("deadlock", refund, "", "account ctid (0,2)", "", "", False, 3, 8.1, 7, 3.0,
                       2),
        ConflictReport("waiting", "late-background:index", "late-background:index",
                       "counter(name=documents)", "", "", True, 1, 4.2, 90, 30.0, 640),
        ConflictReport("serialization", "checkout", charge, "stock(12,eu)", book, "", False, 2,
                       before_s=6.0, before=9),
    )  # fmt: skip
    control.reports.write(WorkerReport(WORKERS[0], "host:1", ("default",), 15.0, conflicts=lines))


def _turn(control: Control) -> None:
    with audit.acting("olga@page"):
        control.queues.change("queue", "payments", {"rate": 50.0, "owner": "billing"})
        control.queues.change("queue", "thumbnails", {"paused": True, "owner": "media"})
        control.queues.change("target", "bank", {"breaker": 0.3})
    with audit.acting("eve"):
        control.queues.change("queue", "payments", {"rate": 20.0, "max_backlog": 100_000})
        control.queues.change("queue", "old-name", {"rate": 5.0})
        control.queues.change("queue", "celery:send", {"late_share": 0.5})


def _schedule(name: str, rule: str, now_us: int) -> Schedule:
    every = rule.startswith("every")
    return Schedule(
        name=name, shard_id=1, rule=rule, zone="UTC" if every else "Europe/Berlin",
        catch_up="latest", catch_up_max=1, overlap="skip", queue="receipts",
        task_name=name.replace("-", "_"), payload=b"{}", options=None, anchor_us=now_us,
        next_due_at_us=now_us + 90 * SECOND,
    )  # fmt: skip


def _autoscaled(url: str) -> None:
    with Control(url) as control:
        now = control.now()
    engine = make_engine(url)
    try:
        with writing(engine) as connection:
            connection.execute(
                controller.insert().values(
                    name="tasks-db", owner="scaler-1", epoch=3, expires_at_us=now + 10**12, seq=4,
                    up_us=now - 30 * MINUTE, down_us=now - 4 * MINUTE, looked_at_us=now,
                    last='"holds: 41 % of the processor"',
                )
            )  # fmt: skip
            for seq, (ago, size, to) in enumerate(
                ((180, 300, 500), (120, 500, 900), (30, 900, 1200), (4, 1200, 900)), start=1
            ):
                connection.execute(
                    decision.insert().values(
                        controller="tasks-db", seq=seq, epoch=3, owner="scaler-1",
                        at_us=now - ago * MINUTE, rule="processor", from_size=size, to_size=to,
                        wanted=to, inputs="{}", result="applied",
                        why="72 % of the processor is used" if to > size else "31 % is used",
                    )
                )  # fmt: skip
    finally:
        engine.dispose()
