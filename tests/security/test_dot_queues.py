"""Queues named `.` and `..`, which no URL can name: none takes a task, and old ones drain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import late
from late.control import Control
from late.errors import ConfigError, InvalidName
from late.model.ids import new_id
from late.model.task import NewTask
from late.outbox import connect, insert
from late.testing import drain
from tests.support import sqlite
from tests.unit.api_kit import served

DOTS = (".", "..")


@pytest.mark.parametrize("queue", DOTS)
async def test_no_task_enters_one(tmp_path: Path, queue: str) -> None:
    app = late.App("sqlite:///unused.db", strict=False)
    with pytest.raises(ConfigError, match="no queue has this name"):
        app.task(name="charge", queue=queue)(lambda: None)
    with pytest.raises(InvalidName, match="no queue has this name"):
        app.call("charge", queue=queue)
    async with served(tmp_path) as it:
        many = await it.call("POST", "/v1/tasks", {"tasks": [{"name": "charge", "queue": queue}]})
        assert (many.status, many.json["error"]) == (400, "invalid_task")
        raw = await it.call("POST", f"/v1/queues/{queue}/tasks", {"name": "charge"})
        assert (raw.status, raw.json["error"]) == (400, "invalid_task")
    app.call("charge", queue="...")


@pytest.mark.parametrize("queue", DOTS)
def test_what_is_in_one_still_runs(tmp_path: Path, queue: str) -> None:
    url = sqlite.database(tmp_path / "q.db")
    app = late.App(url)
    ran: list[Any] = []

    @app.task(queue="payments")
    def charge(n: int) -> None:
        ran.append(n)

    app.route(queue, target="pull")
    with connect(url) as tx:
        rows = [NewTask(0, new_id(0), queue, "charge", b'{"n":%d}' % n) for n in range(3)]
        insert(tx, rows)
    with Control(url) as control:
        control.queues.change("queue", queue, {"concurrency": 1})
    assert drain(app) == {"done": 3}
    assert sorted(ran) == [0, 1, 2]
