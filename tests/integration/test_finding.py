"""A task's row in the log by its id: near the moment that the id names, or else anywhere."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, event

from late.control import Control, finding
from late.control.finding import _halve, logged
from late.ids import new_id
from late.schema.engine import make_engine, reading
from late.task import TaskId
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

            return logged(connection, task_id), len(seen)
    finally:
        engine.dispose()


def test_a_task_is_found_where_its_id_says_and_nowhere_else_is_looked(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [task(payload=b'{"n":%d}' % n) for n in range(20)]
    strange = msgspec.structs.replace(task(), task_id=TaskId("0190" + new_id(0)[4:]))
    insert(url, *mine, strange, *(task(shard=1) for _ in range(5)))
    found, _ = statements(url, strange.task_id)  # made by a clock that is years behind
    assert str(found["task_id"]) == strange.task_id
    far = "fff" + new_id(0)[3:]
    for absent in (new_id(0), new_id(7), far):
        assert statements(url, absent)[0] is None
    with Control(url) as control:
        assert control.show(strange.task_id).groups[0].state == "logged"
        assert control.show(far).groups[0].state == "unknown"
        finder = finding._anywhere
        if statements(url, mine[0].task_id)[1] > 1:  # else the key of the log begins with the id
            monkeypatch.setattr(finding, "_anywhere", None)
        for each in (mine[0], mine[7], mine[-1]):
            found, count = statements(url, each.task_id)
            assert (str(found["task_id"]), bytes(found["payload"])) == (each.task_id, each.payload)
            assert count <= 30
            assert control.show(each.task_id).groups[0].state == "logged"
        monkeypatch.setattr(finding, "_anywhere", finder)


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
