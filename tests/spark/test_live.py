"""A store read in parts: on every store, exact to the row, and never silently short."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from late_spark import live, parts
from late_spark.bounds import Bounds
from late_spark.fetch import Moment
from late_spark.parts import JournalPruned, Part, Stretch
from late_spark.snapshot import exported

from late.control import Control
from late.errors import ConfigError, SchemaMismatch, StoreError, StoreUnavailable
from late.model.task import HELD_US, Usage
from late.schema.engine import make_engine, writing
from late.schema.tables import dead, timer
from late.store.base import Store
from tests.conformance.backends import BACKENDS, Backend
from tests.spark.kit import SECOND, START_US, done, prune, put_together, read, settled, write

SQLITE = next(each for each in BACKENDS if not each.network)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """Where the store does not matter."""
    return SQLITE.create(tmp_path)


def test_usage_is_read_with_all_that_the_ledger_has(url: str) -> None:
    retried = Usage("q", "n", "billing", "retried", 2, 2, 7, 9, 0, 1, 5, 1,
                    ((4, 2),), ((3, 1), (4, 1)), "acme")  # fmt: skip
    write(url, [settled(1), settled(2, [done(3), retried]), settled(1, [done(1)], shard=7)])
    with Control(url) as control:
        control.queues.change("queue", "q", {"owner": "payments"})
    found = read(url).to_pylist()
    assert [(row["shard_id"], row["seq"], row["outcome"]) for row in found] == [
        (0, 2, "done"), (0, 2, "retried"), (7, 1, "done")]  # fmt: skip
    assert found[1] == {
        "settled_at": datetime.fromtimestamp(START_US // SECOND + 1, UTC),
        "settled_us": START_US + SECOND, "consumer_group": "default", "shard_id": 0, "seq": 2,
        "epoch": 1, "worker": "w1", "queue": "q", "name": "n", "target": "billing",
        "outcome": "retried", "count": 2, "attempts": 2, "retries": 1, "busy_us": 7,
        "waiting_us": 9, "bytes": 0, "lateness_us": 5, "waiting_hist": [(4, 2)],
        "busy_hist": [(3, 1), (4, 1)], "tenant": "acme", "owner": "payments", "delayed": 1,
        "counts": [],
    }  # fmt: skip


def test_rows_of_an_older_version_read_as_not_recorded(file_url: str) -> None:
    write(file_url, [settled(1, '[["q","n","local","done",3,4,50,60,70]]')])
    [row] = read(file_url).to_pylist()
    assert (row["count"], row["bytes"], row["retries"], row["waiting_hist"]) == (3, 70, 0, [])


def test_the_journal_is_read_as_it_is(url: str) -> None:
    write(url, [settled(1), settled(2, [done(1)])])
    found = read(url, "journal").to_pylist()
    assert [(row["seq"], row["usage"] is None, row["settlement_id"]) for row in found] == [
        (1, True, "w1/default/0/1"), (2, False, "w1/default/0/2")]  # fmt: skip


async def test_tasks_timers_and_dead_letters_are_read(
    url: str, backend: Backend, store: Store
) -> None:
    from tests.conformance.kit import task

    raw = backend.raw(url)
    raw.insert(task(0, b"\x00\xff"), task(3, headers='{"a":"b"}'))
    raw.close()
    columns = {
        "consumer_group": "default", "shard_id": 0, "task_id": task().task_id, "position": 5,
        "sequence": 6, "queue": "q", "name": "n", "payload": b"{}", "created_at_us": START_US,
        "attempts": 1, "deaths": 0,
    }  # fmt: skip
    engine = make_engine(url)
    with writing(engine) as connection:
        connection.execute(
            timer.insert().values(columns | {"due_at_us": HELD_US, "reason": "held"})
        )
        connection.execute(
            dead.insert().values(columns | {"dead_at_us": START_US, "reason": "failed"})
        )
    engine.dispose()
    tasks = {row["shard_id"]: row for row in read(url, "tasks").to_pylist()}
    assert (tasks[0]["payload"], tasks[3]["headers"]) == (b"\x00\xff", '{"a":"b"}')
    assert tasks[0]["created_at_us"] > 0
    [held] = read(url, "timers").to_pylist()
    assert (held["due_at_us"], held["due_at"], held["payload"]) == (HELD_US, None, b"{}")
    [letter] = read(url, "dead", Bounds(queues=frozenset({"q"}))).to_pylist()
    assert (letter["reason"], letter["dead_at"]) == (
        "failed", datetime.fromtimestamp(START_US // SECOND, UTC))  # fmt: skip
    assert read(url, "dead", Bounds(queues=frozenset({"other"}))).num_rows == 0


def test_a_read_is_one_moment_of_all_journals(file_url: str) -> None:
    write(file_url, [settled(seq, [done(1)], shard=shard) for shard in (0, 1) for seq in (1, 2)])
    plan = live.plan(file_url, "usage", Bounds())
    write(file_url, [settled(3, [done(100)], shard=0), settled(1, [done(100)], shard=2)])
    rows = [
        row
        for part in plan.parts
        for batch in parts.read(file_url, "usage", part, ["count"], Bounds(), {})
        for row in batch.to_pylist()
    ]
    assert rows == [{"count": 1}] * 4


def test_a_journal_that_is_pruned_while_it_is_read_is_refused(file_url: str) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in range(1, 5)])
    [part] = live.plan(file_url, "usage", Bounds()).parts
    prune(file_url, 2)
    with pytest.raises(JournalPruned, match=r"2 of the settlements 1..4 of default/0 are gone"):
        list(parts.read(file_url, "usage", part, ["count"], Bounds(), {}))


def test_partitions_in_any_order_are_no_gap(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spanner's partitions of a query at a timestamp come as they come."""
    write(file_url, [settled(seq, [done(10**seq)]) for seq in range(1, 7)])
    put_together(file_url, 2, 3)
    # Settlement 2 is known from elsewhere, and is taken out of the row that it shares with 3.
    stretch = Stretch("default", 0, 3, 6, known=(done(100),), begins=2)
    read_in_order = parts.batches

    def backwards(*given: Any, moment: Moment) -> Iterator[pa.RecordBatch]:
        for batch in read_in_order(*given):
            yield from (batch.slice(at, 1) for at in reversed(range(batch.num_rows)))

    monkeypatch.setattr(parts, "batches", backwards)
    found = [
        row["count"]
        for batch in parts.read(
            file_url, "usage", Part((stretch,)), ["count"], Bounds(), {}, moment=Moment(at_ns=1)
        )
        for row in batch.to_pylist()
    ]
    assert found == [10**3, 10**4, 10**5, 10**6]


def test_a_range_that_begins_before_the_journal_is_refused(file_url: str) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in range(1, 5)])
    prune(file_url, 2)
    bounds = Bounds(from_us=START_US)
    with pytest.raises(JournalPruned, match=r"begins at 2026-09-21T14:13:22Z, the range at .*20Z"):
        live.plan(file_url, "usage", bounds)
    # What is kept, and no more, is asked for: fine.
    assert read(file_url, bounds=Bounds(from_us=START_US + 2 * SECOND)).num_rows == 2
    assert read(file_url).num_rows == 2


def test_a_journal_that_begins_within_the_range_is_whole(file_url: str) -> None:
    write(file_url, [settled(1, [done(1)])])
    assert read(file_url, bounds=Bounds(from_us=1)).num_rows == 1


def test_a_range_of_time_reads_what_may_be_in_it(file_url: str) -> None:
    hour = 3600 * SECOND
    rows = [settled(seq, [done(1)], at_us=START_US + seq * hour) for seq in range(1, 200)]
    write(file_url, rows)
    bounds = Bounds(from_us=START_US + 50 * hour, to_us=START_US + 60 * hour)
    [part] = live.plan(file_url, "usage", bounds).parts
    assert part.stretches == (Stretch("default", 0, 50, 60),)


def test_a_tail_goes_on_behind_what_is_known(file_url: str) -> None:
    write(file_url, [settled(seq, [done(1)], shard=s) for s in (0, 1) for seq in range(1, 6)])
    found = read(file_url, after={("default", 0): 3, ("default", 1): 5})
    assert found.column("seq").to_pylist() == [4, 5]
    prune(file_url, 4)
    with pytest.raises(JournalPruned, match=r"settlements 4..4 of default/0 are gone"):
        live.plan(file_url, "usage", Bounds(), after={("default", 0): 3})


def test_a_plan_is_divided_and_put_together() -> None:
    long, short = Stretch("g", 0, 1, 25), [Stretch("g", shard, 1, 2) for shard in (1, 2)]
    found = list(live._divided([long, *short], 3))
    assert found == [
        Part((Stretch("g", 0, 1, 10),)),
        Part((Stretch("g", 0, 11, 20),)),
        Part((Stretch("g", 0, 21, 25), *short)),
    ]
    assert list(live._divided([], 3)) == []


def test_only_the_shards_and_groups_that_are_asked_for_are_read(file_url: str) -> None:
    write(file_url, [settled(1, [done(1)], shard=s, group=g) for s in (0, 1) for g in ("a", "b")])
    bounds = Bounds(shards=frozenset({1}), groups=frozenset({"b"}))
    [part] = live.plan(file_url, "usage", bounds).parts
    assert part.stretches == (Stretch("b", 1, 1, 1),)


def test_filters_are_in_the_statement(file_url: str) -> None:
    bounds = Bounds(1, 2, frozenset({3}), frozenset({"q"}), frozenset({"g"}))
    where = str(parts.statement(file_url, "dead", ["task_id"], bounds)).partition("WHERE")[2]
    for column in ("shard_id", "queue", "consumer_group", "dead_at_us >=", "dead_at_us <"):
        assert column in where
    assert "consumer_group" not in str(parts.statement(file_url, "tasks", ["task_id"], bounds))


def test_usage_that_cannot_be_read_is_named(file_url: str) -> None:
    write(file_url, [settled(1, "oops")])
    with pytest.raises(StoreError, match="settlement 1 of default/0 has an unreadable usage"):
        read(file_url)


def test_a_database_without_a_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch):
        live.plan(SQLITE.create_empty(tmp_path), "usage", Bounds())


def test_an_exported_snapshot_is_seen_by_every_part(url: str, backend: Backend) -> None:
    from tests.conformance.kit import task

    # What can prepare a transaction in one session for another can hand on a snapshot as well.
    if not backend.two_phases:
        with pytest.raises(ConfigError, match="cannot hand a snapshot"), exported(url):
            pass
        return
    raw = backend.raw(url)
    raw.insert(task(0), task(1), task(1))
    with exported(url) as name:
        raw.insert(task(0), task(2))
        write(url, [settled(1, [done(1)])])
        plan = live.plan(url, "tasks", Bounds(), moment=Moment(name))
        assert plan.parts == (Part(shards=(0,)), Part(shards=(1,)))
        assert read(url, "tasks", moment=Moment(name)).num_rows == 3
        assert read(url, "usage", moment=Moment(name)).num_rows == 0
    raw.close()
    with pytest.raises(StoreUnavailable, match=r"gone"):
        live.plan(url, "tasks", Bounds(), moment=Moment(name))


@pytest.mark.parametrize("boost", [False, True])
def test_the_past_is_read_where_it_is_kept(url: str, backend: Backend, boost: bool) -> None:
    from tests.conformance.kit import task

    if not backend.keeps_past:
        with pytest.raises(ConfigError, match="asOf is of Spanner; this database is"):
            live.plan(url, "tasks", Bounds(), moment=Moment(as_of_us=START_US))
        with pytest.raises(ConfigError, match="dataBoost is of Spanner"):
            live.plan(url, "journal", Bounds(), moment=Moment(boost=True))
        return
    # Given rows, and the moment at which there were no others
    raw = backend.raw(url)
    raw.insert(task(0, b"\x00\xff"), task(3))
    write(url, [settled(1, [done(1)]), settled(2, [done(2)])])
    plan = live.plan(url, "tasks", Bounds(), columns=["payload"])
    assert plan.moment.at_ns is not None
    # When more is written, and what retention does is done
    raw.insert(task(0))
    raw.close()
    write(url, [settled(3, [done(3)])])
    prune(url, 1)
    # Then every part of the plan, and a read of that time, has what was there
    found = [
        row["payload"]
        for part in plan.parts
        for batch in parts.read(url, "tasks", part, ["payload"], Bounds(), {}, moment=plan.moment)
        for row in batch.to_pylist()
    ]
    assert sorted(found) == [b"\x00\xff", task().payload]
    past = Moment(as_of_us=plan.moment.at_ns // 1_000 + 1, boost=boost)
    assert read(url, "usage", moment=past).column("count").to_pylist() == [1, 2]
    queues = Bounds(queues=frozenset({task().queue}), shards=frozenset({3}))
    assert read(url, "tasks", queues, moment=past).column("shard_id").to_pylist() == [3]
    # And now is now
    assert read(url, "tasks").num_rows == 3
    assert read(url, "usage", moment=Moment(boost=boost)).column("count").to_pylist() == [2, 3]
    with pytest.raises(ConfigError, match="that time has not come"):
        live.plan(url, "tasks", Bounds(), moment=Moment(as_of_us=2**52))
    with pytest.raises(ConfigError, match="a snapshot is of PostgreSQL"):
        live.plan(url, "tasks", Bounds(), moment=Moment("00000003-1"))


def test_a_compacted_journal_is_read_to_the_settlement(file_url: str) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in range(1, 13)])
    put_together(file_url, 1, 4)
    put_together(file_url, 6, 9)
    found = read(file_url, parts=12)
    assert found.column("seq").to_pylist() == [4, 5, 9, 10, 11, 12]
    assert found.column("count").to_pylist() == [4, 1, 4, 1, 1, 1]
    assert read(file_url, "journal").num_rows == 6
    begins = Bounds(from_us=START_US + 5 * SECOND)
    assert read(file_url, bounds=begins).column("count").to_pylist()[-1] == 1
    assert read(file_url, after={("default", 0): 9}).num_rows == 3
    # What is known ends within a row, and nobody says what that was.
    with pytest.raises(JournalPruned, match=r"settlements 6..9 .* up to 7 are known"):
        live.plan(file_url, "usage", Bounds(), after={("default", 0): 7})


@pytest.mark.parametrize(("first", "last"), [(1, 4), (4, 6), (2, 12)])
def test_compaction_across_the_ends_of_a_part_is_refused(
    file_url: str, first: int, last: int
) -> None:
    """Nothing is counted twice or left out: the read fails, and the next one is whole."""
    write(file_url, [settled(seq, [done(1)]) for seq in range(1, 13)])
    plan = live.plan(file_url, "usage", Bounds(), after={("default", 0): 2})
    [part] = plan.parts
    [ended] = live.plan(file_url, "usage", Bounds(to_us=START_US + 4 * SECOND)).parts
    ended = Part((Stretch("default", 0, 3, 5),))
    put_together(file_url, first, last)
    wanted = part if first < 3 else ended
    with pytest.raises(JournalPruned):
        list(parts.read(file_url, "usage", wanted, ["count"], Bounds(), {}))
