"""`late verify`: what is sound adds up, and every way to break the books by hand is named."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, literal, select

from late.control import Control
from late.control.verify.problems import LISTED, REMEDIES
from late.control.verify.task_account import Totals
from late.control.verify.verify import Verified
from late.errors import ConfigError
from late.model.task import ShardId
from late.schema.tables import dead
from late.store import open_store
from tests.conformance import kit
from tests.integration.control_kit import execute, transaction
from tests.integration.control_kit import insert as enqueue
from tests.integration.ledger_kit import DAMAGES, SHARD, keep_books


def verified(url: str, **which: Any) -> Verified:
    with Control(url) as control:
        return control.verify(**which)


async def test_every_task_is_counted_where_it_is(url: str) -> None:
    books = await keep_books(url)
    found = verified(url)
    assert (found.problems, found.notes) == ((), ())
    assert found.ok
    (ledger,) = found.ledgers
    assert (ledger.group, ledger.shard_id, ledger.owner) == ("default", SHARD, "w1")
    assert (ledger.seq, ledger.since_seq) == (books.seq, 1)
    assert ledger.totals == Totals(log=8, waiting=1, open=1, parked=2, dead=1, settled=3)
    assert ledger.ended == {"dead": 1, "done": 3}
    assert found.totals == ledger.totals


@pytest.mark.parametrize("name", DAMAGES)
async def test_damage_is_named(url: str, name: str) -> None:
    damage = DAMAGES[name]
    books = await keep_books(url)
    assert verified(url).ok
    with transaction(url) as connection:
        damage.make(connection, books)
    found = verified(url)
    assert not found.ok
    assert {p.kind for p in found.problems} == {damage.kind} | damage.also
    assert found.problems_total == len(found.problems)
    named = next(p for p in found.problems if p.kind == damage.kind and damage.what in p.what)
    task = getattr(books, damage.task).task_id if damage.task else None
    assert (named.shard_id, named.task_id) == (SHARD, task)
    assert named.remedy == REMEDIES[damage.kind]


def test_every_kind_of_problem_is_made_by_hand() -> None:
    assert {damage.kind for damage in DAMAGES.values()} == set(REMEDIES)


async def test_what_has_outlived_its_record_is_sound(url: str) -> None:
    """Parked tasks and dead letters carry their record; a settled one is pruned."""
    books = await keep_books(url)
    kept = (books.open.task_id, books.waiting.task_id)
    execute(url, f"delete from late_task where task_id not in ('{kept[0]}', '{kept[1]}')")
    found = verified(url)
    assert found.problems == ()
    assert found.totals == Totals(log=2, waiting=1, open=1, parked=2, dead=1, settled=0)


async def test_a_journal_without_its_beginning_says_what_was_not_compared(url: str) -> None:
    await keep_books(url)
    execute(url, "delete from late_settlement where seq < 3")
    found = verified(url)
    assert found.ok
    assert found.ledgers[0].since_seq == 3
    assert "1 of 1 journals are pruned at their beginning" in found.notes[0]


async def test_a_task_that_was_sent_back_and_ended_again_is_sound(url: str) -> None:
    await keep_books(url)
    with Control(url) as control:
        from late.control import Filter

        control.dead_letters.redrive(Filter(group="default"))
        found = control.verify()
    assert found.problems == ()
    assert (found.totals.parked, found.totals.dead) == (3, 0)


async def test_what_nobody_owned_waits(url: str) -> None:
    enqueue(url, kit.task(0), kit.task(4095))
    execute(url, "insert into late_group (name, created_at_us) values ('audit', 1)")
    store = open_store(url)
    await store.open()
    await kit.own(store, 0)
    await store.close()
    found = verified(url)
    assert found.ok
    assert found.totals == Totals(log=4, waiting=4)
    assert found.notes == (
        "shards with tasks that no lane names: 4095 (workers run them)",
        "never owned in group audit, all of it waits: shards 0, 4095",
        "never owned in group default, all of it waits: shards 4095",
    )


async def test_filters_choose_the_accounts(url: str) -> None:
    await keep_books(url)
    enqueue(url, kit.task(0))
    execute(url, "insert into late_group (name, created_at_us) values ('audit', 1)")
    named = {(each.group, each.shard_id) for each in verified(url).ledgers}
    assert named == {("audit", 0), ("audit", 3), ("default", 0), ("default", 3)}
    assert [(e.group, e.shard_id) for e in verified(url, group="audit", shard_id=3).ledgers] == [
        ("audit", 3)
    ]
    with pytest.raises(ConfigError, match="no consumer group 'ghost'"):
        verified(url, group="ghost")


async def test_problems_are_bounded(url: str) -> None:
    """More dead letters twice than are listed: the rest is counted."""
    store = open_store(url)
    await store.open()
    owner = await kit.own(store, 0)
    letters = tuple(kit.dead(kit.record(0, position=n + 1)) for n in range(LISTED + 7))
    for start in range(0, len(letters), 500):
        await owner.settle(dead=letters[start : start + 500])
    await store.close()
    others = [column for column in dead.c if column.name != "dead_at_us"]
    twice = insert(dead).from_select(
        [*(column.name for column in others), "dead_at_us"], select(*others, literal(5))
    )
    with transaction(url) as connection:
        connection.execute(twice)
    found = verified(url, shard_id=ShardId(0))
    assert (len(found.problems), found.problems_total) == (LISTED, LISTED + 7)
