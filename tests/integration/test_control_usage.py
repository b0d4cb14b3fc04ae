"""Usage of a day read forward from the journal, and a single shard's owners."""

from __future__ import annotations

import msgspec
import pytest

from late.control import Control
from late.control.audit import acting
from late.control.status import pauses
from late.control.status.usage import usage_since
from late.errors import ConfigError
from late.model.histogram import histogram
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
    await store.heartbeat(msgspec.structs.replace(worker("leaving"), capacity=0.0), 60.0)
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
        assert [each.worker_id for each in control.reports.all_and_deaths()[1]] == ["gone"]
        execute(url, "update late_worker set expires_at_us = :at where worker_id = 'leaving'",
                at=now - 2)  # fmt: skip
        assert [each.worker_id for each in control.reports.all_and_deaths()[1]] == ["gone"]
        execute(url, "delete from late_worker where worker_id = 'leaving'")
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


async def test_an_objective_is_judged_by_the_journal_of_each_group(url: str) -> None:
    store = open_store(url)
    await store.open()
    one, two = await own(store, 1), await own(store, 2)
    for shard, waits_s in ((one, (1, 2, 90)), (two, (3,))):
        waits = histogram(each * 1_000_000 for each in waits_s)
        n = len(waits_s)
        await shard.settle(usage=(Usage("mail", "send", "local", "done", n, n, waiting=waits),))
    await store.close()
    with Control(url) as control:
        assert control.status.read().objectives == (), "no queue has one"
    with Control(url) as control:
        control.queues.change("queue", "mail", {"objective_s": 30.0})
        [found] = control.status.read().objectives
        assert (found.group, found.queue, found.objective_s) == ("default", "mail", 30.0)
        assert (found.started, found.late) == (4, 1)
        assert found.burn("5m") == pytest.approx(25.0)
        assert found.budget_left == 0.0
        assert control.look().status.objectives == (found,)
        assert control.status.read(queue="other").objectives == ()
    with Control(url) as control:
        control.queues.change("queue", "mail", {"paused": True})
        assert control.status.read().objectives == (), "what is paused starts nothing on purpose"


async def test_an_objective_of_a_group_is_judged_over_its_queues(url: str) -> None:
    store = open_store(url)
    await store.open()
    owner = await own(store, 1)
    waits = histogram(each * 1_000_000 for each in (1, 90))
    usage = (Usage(queue, "send", "local", "done", 2, 2, waiting=waits) for queue in ("a", "b"))
    await owner.settle(usage=tuple(usage))
    await store.close()
    with Control(url) as control:
        control.groups.create("other", start="now")
        with acting("ada"):
            assert control.groups.change("default", {"objective_s": 30}).objective_s == 30.0
        [found] = control.status.read().objectives
        assert (found.group, found.queue, found.started, found.late) == ("default", "", 4, 2)
        [entry] = control.audit.entries(subject="group:default")
        assert (entry.actor, entry.action, entry.after) == (
            "ada", "group.set", '{"objective_s":30.0}',
        )  # fmt: skip
    with Control(url) as control:
        control.groups.pause("default")
        assert control.status.read().objectives == (), "what is paused starts nothing on purpose"
        control.groups.resume("default")
        for bad in ({"objective_s": 0}, {"objective_s": "1m"}, {"nope": 1}):
            with pytest.raises(ConfigError):
                control.groups.change("default", bad)
        control.groups.change("default", {"objective_s": None})
        assert control.status.read().objectives == ()
        control.groups.change("other", {"objective_s": 5})
        control.groups.delete("other")
        assert control.groups.create("other", start="now").objective_s is None


async def test_what_is_paused_is_told_with_who_paused_it_and_when(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Control(url) as control:
        control.groups.create("search", start="now")
        with acting("ada"):
            control.queues.change("queue", "mail", {"paused": True})
            control.groups.pause("search")
        with acting("ben"):
            control.queues.change("queue", "mail", {"rate": 5.0})
            control.queues.change("target", "bank", {"paused": True})
            control.queues.change("queue", "slow", {"paused": True})
            control.queues.change("queue", "slow", {"paused": None})
        found = control.status.read().pauses
        assert [(p.kind, p.name, p.by) for p in found] == [
            ("queue", "mail", "ada"), ("target", "bank", "ben"), ("group", "search", "ada"),
        ]  # fmt: skip
        assert all(p.since_us is not None for p in found)
        assert control.look().status.pause("queue", "mail") == found[0]
        assert control.look().status.pause("queue", "slow") is None
        # Whoever resumes and pauses again has paused it.
        with acting("ben"):
            control.queues.change("queue", "mail", {"paused": None})
            control.queues.change("queue", "mail", {"paused": True})
        assert control.look().status.pauses[0].by == "ben"
        # An audit may be long: what lies further back is not looked for.
        monkeypatch.setattr(pauses, "ENTRIES", 1)
        assert [(p.name, p.by) for p in control.status.read().pauses] == [
            ("mail", "ben"), ("bank", ""), ("search", ""),
        ]  # fmt: skip
