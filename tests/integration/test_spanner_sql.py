"""The statements of docs/sql.md for Spanner: what a service in another language runs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import spanner
from google.cloud.spanner_v1 import param_types

import late
from late.model.ids import IdFactory
from late.testing import drain
from late.testing.servers.spanner import INSTANCE, PROJECT, create_database, drop_database
from tests import servers

DOCS = Path(__file__).parents[2] / "docs/sql.md"
TYPES = {"shard": param_types.INT64, "payload": param_types.BYTES}


@pytest.fixture
def url() -> Iterator[str]:
    if servers.spanner_host() is None:
        pytest.skip("no Spanner emulator: install it with gcloud or set SPANNER_EMULATOR_HOST")
    made = create_database(migrated=True)
    yield made
    drop_database(made)


def statements() -> list[str]:
    """The blocks of the section: the lane, the task, the unique key."""
    section = DOCS.read_text(encoding="utf-8").partition("### On Spanner")[2].partition("\n## ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.DOTALL)


def test_the_statements_of_the_docs_make_tasks_that_run_once(url: str) -> None:
    app = late.App(url)
    ran: list[int] = []

    @app.task
    def pay(order: int) -> None:
        ran.append(order)

    lane, task, unique = statements()
    database = spanner.Client(project=PROJECT).instance(INSTANCE).database(url.rpartition("/")[2])

    def put(tx: Any, order: int, key: str | None = None) -> bool:
        ((first, _, _),) = list(tx.execute_sql(lane)) or [(0, 8, 0)]
        row: dict[str, Any] = {
            "shard": first,
            "task_id": IdFactory().make(first),
            "queue": "mail",
            "name": pay.name,
            "payload": base64.b64encode(json.dumps({"order": order}).encode()),
            "headers": json.dumps({"tenant": "acme"}),
            "options": json.dumps({"priority": 5} | ({"unique_key": key} if key else {})),
        }
        if key is not None:
            taken = {"unique_key": key, "task_id": row["task_id"], "digest": "pay"}
            kinds = dict.fromkeys(taken, param_types.STRING)
            if not tx.execute_update(unique, taken, kinds):
                return False
        kinds = {name: TYPES.get(name, param_types.STRING) for name in row}
        return bool(tx.execute_update(task, row, kinds))

    assert database.run_in_transaction(put, 1)
    assert database.run_in_transaction(put, 2, "order:2")
    assert not database.run_in_transaction(put, 3, "order:2"), "the key is taken"
    assert drain(app) == {"done": 2}
    assert sorted(ran) == [1, 2]
    assert database.run_in_transaction(put, 4, "order:2"), "it is free once the task has ended"
