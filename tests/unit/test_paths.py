"""How many calls of Python a path takes, and how many files one reads to follow it.

The bounds are what was reached and a fifth more: a path that grows by a layer is seen here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import late
from tests.servers import drop_database, migrated_database, postgres_url
from tests.support.paths import Trace


def _enqueue(url: str, tx: Any, **options: Any) -> Callable[[], object]:
    app = late.App(url)

    @app.task
    def charge(trip_id: int, amount: str) -> None: ...

    def enqueue() -> object:
        task = charge.options(**options) if options else charge
        return task.enqueue(tx, 7, amount="3.50")

    enqueue()  # the first one finds the adapter
    return enqueue


def _check(enqueue: Callable[[], object], most_calls: int, most_files: int) -> None:
    with Trace() as trace:
        enqueue()
    assert ("outbox/execute.py", "write") in trace.calls
    assert len(trace.calls) <= most_calls, trace.calls
    assert len(trace.files) <= most_files, trace.files


def test_an_enqueue_through_sqlite3_is_short(late_db: str) -> None:
    tx = sqlite3.connect(late_db.removeprefix("sqlite:///"))
    try:
        _check(_enqueue(late_db, tx), 25, 13)
        _check(_enqueue(late_db, tx, ordering_key="trip-7"), 38, 16)
    finally:
        tx.close()


def test_an_enqueue_through_psycopg_is_short() -> None:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    url = migrated_database(admin)
    try:
        with psycopg.connect(url) as tx:
            _check(_enqueue(url, tx), 25, 13)
            _check(_enqueue(url, tx, ordering_key="trip-7"), 38, 16)
    finally:
        drop_database(admin, url)
