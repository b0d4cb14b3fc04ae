"""Sound books of one shard, and the ways in which somebody may break them behind our back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Table, delete, insert, select, update

from late import outbox
from late.control.sql.rows import log_table_of
from late.model.task import ENQUEUED, HELD_US, OpenTask, Record, ShardId, Usage
from late.schema.tables import dead, lease, schedule, settlement, timer, unique
from late.store import open_store
from late.store.base import cursor_within
from tests.conformance import kit
from tests.integration.control_kit import transaction

SHARD = ShardId(3)


class Books(NamedTuple):
    """One task of each kind. `done` and two more have ended; the last settlement is `seq`."""

    done: Record
    open: Record
    parked: Record
    dead: Record
    held: Record
    waiting: Record
    seq: int
    end: str
    """A cursor that covers the whole log."""


async def keep_books(url: str) -> Books:
    """Eight tasks, one settlement that says all of them, and two more that change nothing."""
    made = [kit.task(SHARD) for _ in range(7)]
    made.append(kit.task(SHARD, unique_key="order-7", digest="d"))
    with transaction(url) as connection:
        for each in made:
            outbox.insert(connection, [each])
    store = open_store(url)
    await store.open()
    owner = await kit.own(store, SHARD)
    (page,) = await store.read({SHARD: kit.BEGINNING}, 100)
    rows = page.records
    done, running, retried, died, held = rows[:5]
    books = Books(done, running, retried, died, held, rows[7], owner.seq + 3, page.cursor)
    due = await store.now() + 10**9
    await owner.settle(
        cursor=cursor_within(page.window, rows[6]),
        open=(kit.open_of(books.open),),
        parked=(
            kit.parked(due, of=books.parked, reason="retry", attempts=1),
            kit.parked(HELD_US, of=books.held, reason="held", held_key="k"),
        ),
        dead=(kit.dead(of=books.dead),),
        usage=(
            Usage("default", "count", "", ENQUEUED, 7, 0),
            Usage("default", "count", "local", "done", 3, 3),
            Usage("default", "count", "local", "dead", 1, 3),
            Usage("default", "count", "local", "retried", 1, 1),
        ),
    )
    await owner.settle()
    await owner.settle()
    await store.close()
    with transaction(url) as connection:
        connection.execute(insert(schedule), [_tick(books.open.task_id)])
    return books


def _tick(task_id: str) -> dict[str, Any]:
    return {
        "name": "nightly", "shard_id": SHARD, "rule": "0 3 * * *", "zone": "UTC",
        "catch_up": "latest", "catch_up_max": 1, "overlap": "skip", "queue": "default",
        "task_name": "count", "payload": b"{}", "anchor_us": 0, "paused": 0,
        "open_task_id": task_id, "updated_at_us": 0,
    }  # fmt: skip


def copy(connection: Connection, table: Table, of: Record, **changes: Any) -> None:
    """Another row like the one of this task."""
    row = connection.execute(select(table).where(table.c.task_id == of.task_id)).one()
    connection.execute(insert(table), [{**row._mapping, **changes}])


def again(connection: Connection, record: Record) -> None:
    """The same task into the log once more."""
    made = kit.task(record.shard_id)
    outbox.insert(connection, [msgspec.structs.replace(made, task_id=record.task_id)])


def remove(connection: Connection, table: Table, record: Record) -> None:
    connection.execute(delete(table).where(table.c.task_id == record.task_id))


def last(connection: Connection, books: Books, **values: Any) -> None:
    """Change the last settlement."""
    at(connection, books.seq, **values)


def at(connection: Connection, seq: int, **values: Any) -> None:
    connection.execute(update(settlement).where(settlement.c.seq == seq).values(**values))


def opened(*records: Record) -> str:
    keys = [OpenTask(record.position, record.task_id) for record in records]
    return msgspec.json.encode(keys).decode()


class Damage(NamedTuple):
    """What somebody did, and what must be said of it."""

    make: Callable[[Connection, Books], object]
    kind: str
    what: str
    task: str = ""
    """The field of `Books` that is named; empty where it is the journal."""
    also: frozenset[str] = frozenset()
    """Kinds that follow from it."""


DAMAGES: Mapping[str, Damage] = {
    "a record of open is deleted": Damage(
        lambda c, b: remove(c, log_table_of(c), b.open), "open_gone", "never run", "open"
    ),
    "open names a task twice": Damage(
        lambda c, b: last(c, b, open=opened(b.open, b.open)), "open_twice", "2 times", "open"
    ),
    "open and not covered": Damage(
        lambda c, b: last(c, b, open=opened(b.open, b.waiting)),
        "two_places", "waiting in the log and open", "waiting",
    ),
    "open and parked": Damage(
        lambda c, b: last(c, b, open=opened(b.open, b.parked)),
        "two_places", "open and parked", "parked",
    ),
    "open and dead": Damage(
        lambda c, b: last(c, b, open=opened(b.open, b.dead)), "ended_twice", "open and dead", "dead"
    ),
    "open no more": Damage(
        lambda c, b: last(c, b, open="[]"), "tick_held", "'nightly' waits for it", "open",
        frozenset({"uncounted"}),
    ),
    "parked twice": Damage(
        lambda c, b: copy(c, timer, b.parked, due_at_us=5), "two_places", "parked twice", "parked"
    ),
    "parked and not covered": Damage(
        lambda c, b: copy(c, timer, b.parked, task_id=b.waiting.task_id),
        "two_places", "waiting in the log and parked", "waiting",
    ),
    "parked and dead": Damage(
        lambda c, b: copy(c, dead, b.dead, task_id=b.parked.task_id),
        "ended_twice", "parked and dead", "parked",
    ),
    "dead twice": Damage(
        lambda c, b: copy(c, dead, b.dead, dead_at_us=5), "ended_twice", "dead twice", "dead"
    ),
    "dead and not covered": Damage(
        lambda c, b: copy(c, dead, b.dead, task_id=b.waiting.task_id),
        "ended_twice", "waiting in the log and dead", "waiting",
    ),
    "held by no key": Damage(
        lambda c, b: c.execute(update(timer).values(held_key=None).where(
            timer.c.task_id == b.held.task_id)),
        "held_forever", "has none", "held",
    ),
    "inserted again after its end": Damage(
        lambda c, b: again(c, b.done), "logged_twice", "2 rows", "done"
    ),
    "inserted twice": Damage(
        lambda c, b: again(c, b.waiting), "two_places", "waiting in the log twice", "waiting"
    ),
    "a unique key of an ended task": Damage(
        lambda c, b: c.execute(update(unique).values(task_id=b.done.task_id)),
        "key_held", "ended, and holds the unique key 'order-7'", "done",
    ),
    "a unique key of a task that is gone": Damage(
        lambda c, b: remove(c, log_table_of(c), b.waiting), "key_held", "holds the", "waiting"
    ),
    "a schedule waits for a dead task": Damage(
        lambda c, b: c.execute(update(schedule).values(open_task_id=b.dead.task_id)),
        "tick_held", "died, and the schedule 'nightly'", "dead",
    ),
    "a parked task is deleted": Damage(
        lambda c, b: remove(c, timer, b.parked), "uncounted", "5 tasks of the log have ended since"
        " settlement 1, the journal counted 4",
    ),
    "a parked task is deleted, and its record was pruned": Damage(
        lambda c, b: [remove(c, table, b.parked) for table in (timer, log_table_of(c))],
        "uncounted", "1 of 7 tasks that were read since settlement 1 have not ended",
    ),
    "the cursor is moved on": Damage(
        lambda c, b: last(c, b, open=opened(b.open), cursor=b.end), "uncounted", "counted 4",
        also=frozenset({"key_held"}),
    ),
    "a cursor is damaged": Damage(
        lambda c, b: last(c, b, cursor="nonsense"), "checkpoint", "not a"
    ),
    "an open is damaged": Damage(lambda c, b: last(c, b, open="{"), "checkpoint", "settlement 4"),
    "a hole": Damage(
        lambda c, b: c.execute(delete(settlement).where(settlement.c.seq == 3)),
        "journal_hole", "between settlements 2 and 4",
    ),
    "sums of what is counted elsewhere": Damage(
        lambda c, b: at(c, 3, first_seq=2), "counted_twice", "settlements 2 to 2 are in the sums"
    ),
    "an epoch goes back": Damage(
        lambda c, b: at(c, 3, epoch=9), "epoch_back", "settlement 4 is of epoch 1"
    ),
    "an epoch of two owners": Damage(
        lambda c, b: last(c, b, owner="w2"), "two_owners", "is w2's, the one before it w1's"
    ),
    "one id twice": Damage(
        lambda c, b: c.execute(update(settlement).values(settlement_id="x")),
        "settlement_twice", "settlements 1 and 4",
    ),
    "usage is damaged": Damage(
        lambda c, b: at(c, 3, usage="oops"), "usage", "settlement 3"
    ),
    "usage is lost": Damage(
        lambda c, b: at(c, 2, usage=None), "uncounted", "the journal counted 0"
    ),
    "the journal is deleted": Damage(
        lambda c, b: c.execute(delete(settlement).where(settlement.c.seq > 0)),
        "journal_gone", "no settlement", also=frozenset({"two_places", "ended_twice"}),
    ),
    "a lease behind": Damage(
        lambda c, b: c.execute(update(lease).values(epoch=0).where(lease.c.epoch > 0)),
        "lease", "its lease has 0",
    ),
    "a lease ahead": Damage(
        lambda c, b: c.execute(update(lease).values(epoch=7).where(lease.c.epoch > 0)),
        "lease", "its lease has 7",
    ),
    "a lease is deleted": Damage(
        lambda c, b: c.execute(delete(lease).where(lease.c.epoch > 0)), "lease", "no lease"
    ),
    "an unknown group": Damage(
        lambda c, b: copy(c, timer, b.parked, consumer_group="ghost"), "group", "not registered",
        also=frozenset({"two_places"}),
    ),
}  # fmt: skip
