"""Usage of a day read forward from the journal, and a single shard's owners."""

from __future__ import annotations

from late.control import Control
from late.control.audit import acting
from late.control.status.usage import usage_since
from late.model.task import Usage
from late.schema.engine import make_engine
from late.store import open_store
from tests.conformance.kit import own, worker
from tests.integration.control_kit import execute


def usage(n: int) -> tuple[Usage, ...]:
    return (Usage("mail", "send", "local", "done", n, n),)


async def test_every_settlement_since_a_moment_is_read_once(url: str) -> None:
    store = open_store(url)
    await store.open()
    one, two = await own(store, 1), await own(store, 2)
    for n in range(7):
        await one.settle(usage=usage(10**n))
    await two.settle(usage=usage(5))
    now = await store.now()
    for seq in range(one.seq - 3):  # yesterday's, its takeover among them
        execute(
            url,
            "update late_settlement set settled_at_us = :at where shard_id = 1 and seq = :seq",
            at=now - 10**11,
            seq=seq + 1,
        )
    await store.close()
    engine = make_engine(url)
    try:
        counts: list[int] = []
        read: dict[tuple[str, int], int] = {}
        whole = False
        while not whole:
            found = usage_since(engine, now - 10**10, read, rows=2)
            counts += [each.count for _, each in found.usage]
            assert all(now - 10**10 <= at <= found.now_us for at in found.times)
            assert len(found.times) == len(found.usage)
            read, whole = dict(found.read), found.whole
        assert sorted(counts) == [5, 10**4, 10**5, 10**6]
        assert usage_since(engine, now - 10**10, read).usage == ()
    finally:
        engine.dispose()


async def test_changes_are_acts_and_workers_that_came_or_died(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.heartbeat(worker("gone"), 60.0)
    await store.heartbeat(worker("alive"), 3_600.0)
    await store.close()
    with Control(url) as control:
        for name in ("mail", "old"):
            control.queues.change("queue", name, {"paused": True})
        now = control.now()
        past = now - 7_200_000_000
        execute(url, "update late_worker set started_at_us = :past, expires_at_us = :at"
                " where worker_id = 'gone'", past=past, at=now - 1)  # fmt: skip
        execute(url, "update late_audit set at_us = :past where subject = 'queue:old'", past=past)
        found = control.status.changes_since(now - 3_600_000_000)
        assert sorted((each.kind, each.subject) for each in found) == [
            ("change", "queue:mail"), ("death", "gone"), ("join", "alive"),
        ]  # fmt: skip
        assert control.status.changes_since(now + 60_000_000) == ()


async def test_one_shard_is_asked_for_alone(url: str) -> None:
    store = open_store(url)
    await store.open()
    await own(store, 1)
    await own(store, 2, name="w2")
    await store.close()
    with Control(url) as control:
        (only,) = control.status.owners(only=("default", 2)).shards
        assert (only.shard_id, only.owner) == (2, "w2")
        assert control.status.owners(only=("default", 4_000)).shards == ()


async def test_the_audit_names_who_acts(url: str) -> None:
    with Control(url) as control:
        with acting("olga@page"):
            control.queues.change("queue", "mail", {"paused": True})
        control.queues.change("queue", "mail", {"paused": None})
        after, before = control.audit.entries(subject="queue:mail")
        assert before.actor == "olga@page"
        assert after.actor != "olga@page"
