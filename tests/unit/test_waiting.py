"""Pages of tasks that wait: complete, bounded, and without payloads. SQLite; the page of Django's
admin reads PostgreSQL too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, event, insert, update

import late
from late.control import Control
from late.control.task_list import pages as task_pages
from late.control.task_list.model import ListedTask, State, TaskFilter
from late.errors import ConfigError
from late.model.ids import new_id
from late.schema.engine import make_engine, write
from late.schema.tables import group, lease, settlement, timer
from tests.support import sqlite

ALL = TaskFilter(group="default")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Make a database with 40 tasks in its log: places 1 to 10 are read, and 2 of them open."""
    found = sqlite.database(tmp_path / "tasks.db")
    app = late.App(found, shards=4)

    @app.task(queue="mail")
    def send(n: int) -> None: ...

    @app.task(queue="payments")
    def pay(n: int) -> None: ...

    with sqlite3.connect(tmp_path / "tasks.db") as tx:
        tasks = [send if n % 2 else pay for n in range(40)]
        app.enqueue_many(tx, [task.call(n) for n, task in enumerate(tasks)])
        rows = tx.execute("select seq, shard_id, task_id from late_task").fetchall()
    tx.close()
    engine = make_engine(found)
    for shard_id in range(4):
        mine = [[seq, task_id] for seq, shard, task_id in rows if shard == shard_id and seq <= 10]
        record(engine, shard_id, [[*key, key[0] == 4] for key in mine if key[0] in (4, 9)])
    engine.dispose()
    return found


def record(engine: Engine, shard_id: int, still_open: list[list[Any]]) -> None:
    """Write what an owner would have: a lease, and a settlement up to the tenth row of the log."""
    where = {"consumer_group": "default", "shard_id": shard_id, "epoch": 1, "owner": "w"}
    settled = {"seq": 1, "settlement_id": "s", "cursor": "10", "settled_at_us": 1}
    encoded = msgspec.json.encode(still_open).decode()

    def both(connection: Any) -> None:
        connection.execute(insert(lease).values(where))
        connection.execute(insert(settlement).values(where | settled | {"open": encoded}))

    write(engine, both)


def park(url: str, dues_us: list[int]) -> None:
    """Write timers with these due times, in turn to the four shards."""
    engine = make_engine(url)
    row = {"consumer_group": "default", "reason": "retry", "position": 1, "sequence": 1}
    row |= {"queue": "mail", "name": "send", "payload": b"secret", "created_at_us": 1}
    row |= {"attempts": 2, "deaths": 0}
    rows = [
        row | {"shard_id": n % 4, "due_at_us": due, "task_id": new_id(n % 4)}
        for n, due in enumerate(dues_us)
    ]
    write(engine, lambda connection: connection.execute(insert(timer), rows))
    engine.dispose()


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Collect every statement."""
    found: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        found.append(" ".join(statement.lower().split()))

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


def pages(
    url: str, state: State, which: TaskFilter = ALL, limit: int = 7
) -> list[list[ListedTask]]:
    found, after = [], None
    with Control(url) as control:
        for _ in range(100):
            page = control.tasks.find(state, which, after=after, limit=limit)
            found.append(list(page.tasks))
            assert page.after is None or after is None or page.after > after
            after = page.after
            if after is None:
                return found
    raise AssertionError("the pages have no end")


def test_the_pages_of_the_log_have_each_task_once_and_in_order(url: str) -> None:
    found = pages(url, "logged")
    places = [task.key[0] for page in found for task in page]
    assert places == list(range(11, 41))
    assert max(map(len, found)) == 7
    assert len({task.task_id for page in found for task in page}) == 30


def test_the_open_ones_are_those_of_the_last_settlements(url: str) -> None:
    (found,) = pages(url, "open")
    assert [(task.key[0], task.started) for task in found] == [(4, True), (9, False)]
    assert [len(page) for page in pages(url, "open", limit=1)][:2] == [1, 1]


def test_parked_tasks_come_by_their_due_time(url: str) -> None:
    park(url, list(range(50, 0, -1)))
    found = [task for page in pages(url, "parked") for task in page]
    assert [task.due_at_us for task in found] == list(range(1, 51))
    assert (found[0].name, found[0].reason, found[0].attempts) == ("send", "retry", 2)


def test_a_filter_leaves_out_the_others_on_every_page(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages, "LOOKED", 8)
    monkeypatch.setattr(task_pages, "LOOKED_MIN", 2)
    which = TaskFilter(group="default", queue="mail", name="send")
    found = pages(url, "logged", which)
    assert len(found) > 3  # Two rows of each shard are looked at.
    assert [task.queue for page in found for task in page] == ["mail"] * 15
    assert pages(url, "logged", TaskFilter(group="default", name="nobody"))[-1] == []
    hour = TaskFilter(group="default", older_us=3_600_000_000)
    assert not any(pages(url, "logged", hour))


def test_a_group_sees_its_own_queues_and_times(url: str) -> None:
    engine = make_engine(url)
    write(engine, lambda each: each.execute(update(group).values(queues='["mail"]')))
    assert {task.queue for page in pages(url, "logged") for task in page} == {"mail"}
    later = {"queues": None, "from_us": 2**60}
    write(engine, lambda each: each.execute(update(group).values(**later)))
    engine.dispose()
    assert not any(pages(url, "logged"))


@pytest.mark.parametrize("state", ["logged", "open", "parked"])
def test_it_reads_a_bounded_number_of_rows_and_no_payload(
    url: str, state: State, statements: list[str]
) -> None:
    park(url, [1, 2, 3])
    statements.clear()
    with Control(url) as control:
        control.tasks.find(state, ALL)
    assert statements
    assert [each for each in statements if "count(" in each or "payload" in each] == []
    of_rows = [each for each in statements if "from late_task" in each or "from late_timer" in each]
    bounded = "in (" if state == "open" else "limit ?"  # The keys of a settlement are a list.
    assert of_rows
    assert all(bounded in each for each in of_rows)


def test_bad_questions(url: str) -> None:
    with Control(url) as control:
        with pytest.raises(ConfigError, match="'nobody'"):
            control.tasks.find("logged", TaskFilter(group="nobody"))
        with pytest.raises(ConfigError, match="'lost'"):
            control.tasks.find("lost", ALL)
        with pytest.raises(ConfigError, match="limit 0"):
            control.tasks.find("logged", ALL, limit=0)
