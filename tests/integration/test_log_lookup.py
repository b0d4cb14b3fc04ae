"""A task's row in the log by its id: near the moment that the id names, or anywhere when asked."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, event

import late
from late.control import Control
from late.control.sql.log_lookup import _halve, find_in_log
from late.model.ids import new_id
from late.model.task import TaskId
from late.schema.engine import make_engine, reading
from tests.conformance.kit import task
from tests.integration.control_kit import insert


def statements(url: str, task_id: str) -> tuple[Any, int]:
    """What is found, and by how many statements."""
    engine = make_engine(url)
    seen: list[str] = []
    try:
        with reading(engine) as connection:

            @event.listens_for(engine, "before_cursor_execute")
            def note(_c: Connection, _k: Any, text: str, *_: Any) -> None:
                seen.append(text)

            return find_in_log(connection, task_id), len(seen)
    finally:
        engine.dispose()


def test_a_task_is_found_where_its_id_says_and_elsewhere_only_when_asked(url: str) -> None:
    mine = [task(payload=b'{"n":%d}' % n) for n in range(20)]
    strange = msgspec.structs.replace(task(), task_id=TaskId("0190" + new_id(0)[4:]))
    insert(url, *mine, *(task(shard=1) for _ in range(5)))
    insert(url, strange)
    far = "fff" + new_id(0)[3:]
    for absent in (new_id(0), new_id(7), far):
        assert statements(url, absent)[0] is None
    with Control(url) as control:
        # Made by a clock that is years behind; CockroachDB's key is the id, whenever it was made.
        if statements(url, mine[0].task_id)[1] > 1:
            assert control.tasks.show(strange.task_id).groups[0].state == "unknown"
        found = control.tasks.show(strange.task_id, everywhere=True)
        assert (found.groups[0].state, found.name) == ("logged", strange.name)
        assert control.tasks.show(far, everywhere=True).groups[0].state == "unknown"
        for each in (mine[0], mine[7], mine[-1]):
            row, count = statements(url, each.task_id)
            assert (str(row["task_id"]), bytes(row["payload"])) == (each.task_id, each.payload)
            assert count <= 30
            assert control.tasks.show(each.task_id).groups[0].state == "logged"


def test_a_task_is_found_minutes_beside_its_time_too(url: str) -> None:
    made_ms = int(time.time() * 1_000)
    for minutes in (-9, 0.5, 9):
        moment = f"{made_ms + round(minutes * 60_000):012x}"
        beside = TaskId(f"{moment[:8]}-{moment[8:]}{new_id(0)[13:]}")
        insert(url, task(), msgspec.structs.replace(task(), task_id=beside), task())
        assert statements(url, beside)[0]["task_id"] == beside


def test_no_lookup_of_one_task_reads_a_whole_table(url: str) -> None:
    if not url.startswith(("sqlite", "postgresql")):
        return  # plans of another shape; the emulator has none
    here = [task() for _ in range(5)]
    insert(url, *here)
    app = late.App(url)
    with Control(url) as control:
        control.groups.create("other", queues=[here[0].queue], start="now")
        for each in (here[2].task_id, new_id(0)):
            with noted() as seen:
                control.tasks.show(each)
                app.handle(each).state()
            assert seen
            assert unbounded(url, seen) == []
        # That this can find something: the slow search is one.
        with noted() as seen:
            control.tasks.show(new_id(0), everywhere=True)
        assert len(unbounded(url, seen)) == 1


@contextmanager
def noted() -> Iterator[list[tuple[str, Any]]]:
    """Every statement of SQLAlchemy's with its parameters."""
    seen: list[tuple[str, Any]] = []

    def note(_c: Connection, _k: Any, text: str, parameters: Any, *_: Any) -> None:
        seen.append((text, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def unbounded(url: str, seen: list[tuple[str, Any]]) -> list[str]:
    """Plans that go over a table, or over all that a shard has in it."""
    is_sqlite = url.startswith("sqlite")
    explain = "explain query plan " if is_sqlite else "explain (costs off) "
    found = []
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            if not is_sqlite:  # few rows: the planner would read them all
                connection.exec_driver_sql("set local enable_seqscan = off")
                connection.exec_driver_sql("set local enable_bitmapscan = off")
            for text, parameters in seen:
                if text.lstrip().lower().startswith("select"):
                    rows = connection.exec_driver_sql(explain + text, parameters).all()
                    plan = "\n".join(str(row[-1]) for row in rows)
                    if goes_over(plan, is_first="LIMIT" in text):
                        found.append(f"{text}\n{plan}")
    finally:
        engine.dispose()
    return found


def goes_over(plan: str, *, is_first: bool) -> bool:
    """`is_first`: it ends at the first row that it meets."""
    lines = [line.strip() for line in plan.splitlines()]
    if any(re.match(r"SCAN (?!CONSTANT)|(-> +)?(Parallel )?Seq Scan", line) for line in lines):
        return True
    ways = [line for line in lines if re.match(r"SEARCH|Index Cond", line)]
    indexed = [line for line in lines if re.match(r"(-> +)?Index (Only )?Scan", line)]
    if len(indexed) > len(ways):
        return True  # an index from end to end
    log = [way for way in ways if "late_task " in way or "shard_id = " in way]
    log = [way for way in log if not re.search("consumer_group", way)]
    return not is_first and any(not re.search(r"seq[=<>]|rowid|xid", way) for way in log)


def test_halving_finds_the_first_that_has_reached() -> None:
    rows = [(3, 10), (7, 20), (8, 20), (100, 30), (1_000_000, 40)]
    asked: list[int] = []

    def inserted(at: int) -> tuple[int, int] | None:
        asked.append(at)
        return next((row for row in rows if row[0] >= at), None)

    for wanted, place in ((0, 3), (10, 3), (11, 7), (20, 7), (30, 100), (40, 1_000_000)):
        found = _halve(inserted, 3, 1_000_000, lambda us, least=wanted: us >= least)
        assert found == place or inserted(found) == inserted(place) != inserted(found - 1)
    assert _halve(inserted, 3, 1_000_000, lambda us: us > 40) == 1_000_000
    assert len(asked) < 7 * 25
