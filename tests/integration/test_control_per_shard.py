"""Screens ask many shards in one statement, and each leg of it walks an index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select

from late.control import Control, Filter
from late.control.groups import rehearsal
from late.control.sql import per_shard as shardwise
from late.control.sql import positions
from late.control.sql.per_shard import spans
from late.control.sql.rows import log_of
from late.control.status import backlog
from late.model.ids import new_id
from late.schema.engine import reading
from late.schema.tables import dead, lease, settlement, timer
from late.web.snapshot import SnapshotReader
from tests.conformance.kit import task
from tests.integration import control_kit

Sent = list[tuple[str, Any]]
QUEUES = 3


def fill(url: str, shards: Sequence[int]) -> None:
    """In each shard: tasks that wait, are parked and are dead, an owner and a journal."""
    control_kit.insert(url, *(task(shard=n, queue=f"q{n % QUEUES}") for n in shards))
    with Control(url) as control:
        now = control.now()
    ours = [{"consumer_group": "default", "shard_id": n} for n in shards]
    record = {"position": 1, "sequence": 1, "queue": "q", "name": "n", "payload": b"{}",
              "created_at_us": now, "attempts": 1, "deaths": 0, "reason": "failed"}  # fmt: skip
    with control_kit.transaction(url) as connection:
        for table, time in ((timer, "due_at_us"), (dead, "dead_at_us")):
            connection.execute(
                insert(table),
                [{**key, **record, time: now - k, "task_id": str(new_id(key["shard_id"]))}
                 for key in ours for k in range(2)],
            )  # fmt: skip
        connection.execute(insert(lease), [{**key, "owner": "w", "epoch": 1} for key in ours])
        connection.execute(
            insert(settlement),
            [{**key, "seq": seq, "settlement_id": f"{key['shard_id']}-{seq}", "epoch": 1,
              "owner": "w", "cursor": "", "open": "[]", "usage": "[]", "settled_at_us": now}
             for key in ours for seq in (1, 2)],
        )  # fmt: skip


def screens(control: Control) -> dict[str, Callable[[], object]]:
    """What screens ask that is about every shard."""
    return {
        "look": SnapshotReader(control)._read,
        "dead letters": lambda: control.dead_letters.page(limit=200),
        "dead letters of a queue": lambda: control.dead_letters.page(Filter(queue="q"), limit=200),
        "tasks parked": lambda: control.tasks.find("parked", limit=100),
        "usage": lambda: control.status.usage_since(1, {}),
        "reset": lambda: control.groups.reset("default", "beginning", dry_run=True),
        "purge of a queue": lambda: control.dead_letters.purge(Filter(queue="q"), dry_run=True),
        "reset to a moment": lambda: control.groups.reset("default", control.now(), dry_run=True),
    }


class Runs(list[Any]):
    """Parameters of a statement that ran again and again: on SQLite that is a call in this process,
    of a text that its driver keeps prepared."""


def sent(control: Control, ask: Callable[[], object]) -> Sent:
    """Statements and their parameters."""
    seen: Sent = []
    embedded = control._database.engine.dialect.name == shardwise.EMBEDDED

    def note(_c: Connection, _k: Any, text: str, parameters: Any, *_: Any) -> None:
        if embedded and " AS leg" in text and seen and seen[-1][0] == text:
            last = seen.pop()[1]
            parameters = Runs([*last, parameters] if isinstance(last, Runs) else [last, parameters])
        seen.append((text, parameters))

    event.listen(control._database.engine, "before_cursor_execute", note)
    ask()
    event.remove(control._database.engine, "before_cursor_execute", note)
    return seen


def legs_of(statement: str, parameters: Any) -> int:
    """How many legs a statement has, in a union or in a lateral join with an array of them, or one
    after the other."""
    if isinstance(parameters, Runs):
        return len(parameters)
    joined = len(parameters["leg"]) if "LATERAL" in statement else 1
    return max(joined, statement.count("UNION ALL") + 1)


GROWING = ("look", "status", "dead letters", "tasks parked", "usage", "reset", "redrive")


def test_statements_do_not_grow_with_shards(url: str) -> None:
    # The driver of Spanner takes a tenth of a second to read one of these statements.
    spanner = url.startswith("spanner")
    shards, names = (20, GROWING[:1]) if spanner else (64, GROWING)
    fill(url, range(8))
    with Control(url) as control:
        control.check()
        ask = screens(control) | {
            "status": control.status.read,
            "redrive": lambda: control.dead_letters.redrive(Filter(), dry_run=True),
        }
        few = {name: sent(control, ask[name]) for name in names}
        fill(url, range(8, shards))
        many = {name: sent(control, ask[name]) for name in names}
        for name, before in few.items():
            # Where a leg reads much there are sixteen in a statement: five in place of one.
            united = sum(legs_of(*each) > 1 for each in before)
            assert 0 < united < 20, name
            assert len(many[name]) <= len(before) + 4 * united, name
            assert len(before) < (50 if name in ("look", "status") else 30), name
        if not spanner:
            for name in ("dead letters", "tasks parked"):
                texts = [
                    [
                        text
                        for text, given in of[name]
                        if isinstance(given, Runs) or "LATERAL" in text
                    ]
                    for of in (few, many)
                ]
                assert texts[0] == texts[1] != [], "not even the text grows: to keep it costs"
        status = control.status.read(limit=1_000)
        assert {each.shard_id: each.lag.n for each in status.shards} == dict.fromkeys(
            range(shards), 1
        )
        waiting = {queue.queue: queue.depth.n for queue in status.queues if queue.depth.n}
        assert waiting == {f"q{n}": len(range(n, shards, QUEUES)) for n in range(QUEUES)}
        (others,) = [each for each in status.queues if each.queue == "q"]
        assert (others.parked.n, others.dead.n) == (2 * shards, 2 * shards)
        assert len(control.tasks.find("parked", limit=1_000).tasks) == 2 * shards
        assert len(control.dead_letters.page(limit=1_000).letters) == 2 * shards


def test_shards_with_many_rows_are_counted_to_the_limit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given that two rows are few, and shards with more of them, as many, and less."""
    monkeypatch.setattr(shardwise, "ROWS", 2 * shardwise.LEGS)
    monkeypatch.setattr(shardwise, "LEGS_OF", {})
    control_kit.insert(url, *(task(shard=n) for n in (0, 0, 0, 0, 1, 1, 2)))
    with Control(url) as control:
        for limit, told in ((10, "7"), (4, ">= 7"), (3, ">= 6"), (1, ">= 3")):
            found = control.status.read(limit=limit)
            assert [str(queue.depth) for queue in found.queues] == [told]
            assert [str(each.lag) for each in found.groups] == [told], "it is what the shards say"
        found = control.status.read()
        [counted], [seen] = control.groups.all(), control.groups.all(seen=found)
        assert (seen.lag, counted.lag_s is not None) == (counted.lag, True)
        assert seen.lag_s == max(each.lag_s or 0 for each in found.shards), "of the oldest"


def test_the_log_is_counted_beyond_any_cursor(url: str) -> None:
    """Given cursors of every form and two groups, of which one reads a single queue."""
    control_kit.insert(url, *(task(shard=n, queue="a") for n in range(4) for _ in range(3)))
    with Control(url) as control:
        engine = control._database.engine
        head = positions.head(engine)
        control_kit.insert(url, *(task(shard=n, queue="b") for n in range(4)))
        cursors, left = ["", head], [{"a": 3, "b": 1}, {"b": 1}]
        with reading(engine) as connection:
            log = log_of(connection)
            if engine.dialect.name == "postgresql":
                rows = select(log.c.xid, log.c.task_id).where(
                    log.c.shard_id == 2, log.c.queue == "a"
                )
                read = connection.execute(rows.order_by(log.c.xid, log.c.task_id)).all()[1]
                cursors.append(f"|{head}@{read.xid},{read.task_id}")
                left.append({"a": 1, "b": 1})
            of_a = [log.c.queue == "a"]
            asked = [backlog.Ahead(n, cursors[n]) for n in range(len(cursors))]
            asked += [backlog.Ahead(n, cursors[n], of_a) for n in range(len(cursors))]
            found = backlog.per_queue(connection, asked, 100)
            at_most = backlog.per_queue(connection, asked[:1], 2)
    counts = [{row.queue: row.n for row in rows} for rows in found]
    assert counts == left + [{q: n for q, n in each.items() if q == "a"} for each in left]
    assert [sum(row.n for row in rows) for rows in at_most] == [2]


def plan(control: Control, statement: str, parameters: Any) -> str:
    """How the database goes about it, where it has an index for all that it does."""
    with reading(control._database.engine) as connection:
        if connection.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(f"explain query plan {statement}", parameters)
            return "\n".join(row[3] for row in rows)
        # A handful of rows is read faster without an index, where that is allowed.
        connection.exec_driver_sql("set local enable_seqscan = off")
        connection.exec_driver_sql("set local enable_bitmapscan = off")
        rows = connection.exec_driver_sql(f"explain {statement}", parameters)
        return "\n".join(row[0] for row in rows)


def test_statements_are_not_compiled(url: str) -> None:
    if not url.startswith("postgresql"):
        return  # nobody else compiles
    with Control(url) as control:
        with control._database.engine.connect() as connection:
            usual = connection.exec_driver_sql("show jit").scalar()
        with reading(control._database.engine) as connection:
            assert connection.exec_driver_sql("show jit").scalar() == "off"
        with control._database.engine.connect() as connection:
            assert connection.exec_driver_sql("show jit").scalar() == usual


BIG = "late_(task|timer|dead|settlement)"
WALKS = re.compile(rf"SEARCH {BIG}\w* USING|Index (Only )?Scan.* on {BIG}")
SCANS = re.compile(rf"SCAN {BIG}|Seq Scan on {BIG}")


def test_each_leg_walks_an_index(url: str) -> None:
    fill(url, range(20))
    with Control(url) as control:
        if control._database.engine.dialect.name not in ("sqlite", "postgresql"):
            for ask in screens(control).values():
                ask()  # the emulator of Spanner has no plans; that it takes them all is something
            return
        legs = 0
        for name, ask in screens(control).items():
            for statement, parameters in sent(control, ask):
                asked = legs_of(statement, parameters)
                if asked == 1 or not re.search(BIG, statement):
                    continue
                one = parameters[0] if isinstance(parameters, Runs) else parameters
                found = plan(control, statement, one)
                assert not SCANS.search(found), (name, statement, found)
                parts = statement.count("UNION ALL") + 1
                assert len(WALKS.findall(found)) >= parts, (name, statement, found)
                legs += asked
        assert legs > 20 * len(screens(control))


def test_the_first_of_all_shards_may_all_be_of_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given that each is asked for its share first, and shards with more, as many, and less."""
    monkeypatch.setattr(shardwise, "FEW", 1)
    fill(url, range(4))
    have = {0: 12, 1: 5, 2: 1, 3: 0}
    with Control(url) as control, control_kit.transaction(url) as connection:
        now = control.now()
        rows = [{"consumer_group": "default", "shard_id": shard, "task_id": str(new_id(shard)),
                 "position": 1, "sequence": 1, "queue": "q", "name": "n", "payload": b"{}",
                 "created_at_us": now, "attempts": 1, "deaths": 0, "reason": "failed",
                 "at": now + (k % 3 - 60 * shard) * 10**6}
                for shard, n in have.items() for k in range(n)]  # fmt: skip
        for table, time in ((timer, "due_at_us"), (dead, "dead_at_us")):
            named = [{**row, time: row["at"]} for row in rows]
            connection.execute(
                insert(table), [{k: v for k, v in row.items() if k != "at"} for row in named]
            )
    with Control(url) as control:
        due = [each.key for each in control.tasks.find("parked", limit=1_000).tasks]
        died = [(x.dead_at_us, x.task_id) for x in control.dead_letters.page(limit=1_000).letters]
        assert len(due) == len(died) == sum(have.values()) + 2 * len(have)
        assert (sorted(due), sorted(died, reverse=True)) == (due, died)
        for limit in (1, 8, 10, 12, 20):
            first = [each.key for each in control.tasks.find("parked", limit=limit).tasks]
            assert first == due[:limit]
            last = [
                (x.dead_at_us, x.task_id) for x in control.dead_letters.page(limit=limit).letters
            ]
            assert last == died[:limit]


def test_shards_of_no_lane_are_found(url: str) -> None:
    fill(url, [0, 5])
    strangers = [9, 10, 4095]
    control_kit.insert(url, *(task(shard=n) for n in strangers))
    with Control(url) as control:
        counted = control.status.read().shards
        assert {each.shard_id: each.lag.n for each in counted if each.lag.n} == dict.fromkeys(
            [0, 5, *strangers], 1
        )


@pytest.mark.parametrize("known", [[], [0], [4095], [3, 4, 9], range(4096)])
def test_spans_hold_every_shard_once(known: Sequence[int]) -> None:
    found = spans(known)
    assert [n for low, high in found for n in range(low, high + 1)] == list(range(4096))
    assert {(n, n) for n in known} <= set(found)
    assert len(found) <= 2 * len(known) + 1


def test_a_preview_says_where_it_stopped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "LOOKED", 3)
    monkeypatch.setattr(rehearsal, "LOOKED_MIN", 3)
    control_kit.insert(url, *(task(shard=2) for _ in range(5)), task(shard=4))
    with Control(url) as control:
        found = control.groups.reset("default", "now", dry_run=True)
    skipped = {each.shard_id: str(each.skipped) for each in found.shards if each.skipped.n}
    assert skipped == {2: ">= 3", 4: "1"}
    assert not any(each.again.capped for each in found.shards)
