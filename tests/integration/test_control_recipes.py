"""Tasks by an argument: the statements that docs/control.md gives, on each store."""

from __future__ import annotations

import re
from pathlib import Path

import late
from late.control import Control
from late.outbox import connect
from late.testing import drain
from tests.integration.control_kit import rows

PAGE = Path(__file__).parents[2] / "docs" / "control.md"
STATEMENTS = dict(re.findall(r"```sql\n-- (\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
OF_STORE = {"sqlite": "SQLite", "spanner": "Spanner"}


def test_tasks_are_found_by_an_argument(url: str) -> None:
    """In the log and among the dead."""
    app = late.App(url)

    @app.task(retry=late.Retry(max_attempts=1))
    def newsletter(campaign: str) -> None:
        raise ValueError(campaign)

    def put(campaign: str) -> str:
        with connect(url) as tx:
            return str(app.enqueue(tx, newsletter.call(campaign)))

    dead, _ = put("oops"), put("fine")
    assert drain(app, timeout_s=120) == {"dead": 2}
    logged, _ = put("oops"), put("fine")
    with Control(url) as control:
        statement = STATEMENTS[OF_STORE.get(control.store, "PostgreSQL")]
    found = {str(row[0]) for row in rows(url, statement)}
    assert logged in found
    assert found <= {logged, dead}, "the log has an ended task until it is pruned"
    _, parked = re.split(r"union(?: distinct)?", statement)
    of_dead = rows(url, parked.replace("late_timer", "late_dead"))
    assert [str(row[0]) for row in of_dead] == [dead]
