"""A connection to Spanner of somebody else's, as the suite wants one: Google's own DB-API."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from contextlib import ExitStack
from functools import partial
from typing import Any

from google.api_core.exceptions import Aborted
from google.cloud import spanner_dbapi
from google.cloud.spanner_v1 import TypeCode

from late.model.task import NewTask
from late.store.spanner.client import place_of, turn
from tests.conformance.backends import Raw

_ROWS = 100
"""Rows per statement: Spanner takes 950 parameters."""
_AGAIN_S = 0.05
_PATIENCE_S = 60.0
_DDL = {
    "create table trips (id integer primary key)": (
        "create table trips (id INT64 NOT NULL) PRIMARY KEY (id)"
    ),
    "create table effect (run varchar(64) primary key, number integer)": (
        "create table effect (run STRING(64) NOT NULL, number INT64) PRIMARY KEY (run)"
    ),
    "create table chaos_tx (tx varchar(64) primary key)": (
        "create table chaos_tx (tx STRING(64) NOT NULL) PRIMARY KEY (tx)"
    ),
}


class SpannerRaw(Raw):
    """The emulator has one transaction at a time, so this one waits in line with the store's."""

    def __init__(self, url: str) -> None:
        place = place_of(url)
        connection = spanner_dbapi.connect(place.instance, place.database, project=place.project)
        connection.autocommit = True
        # The emulator gives up the transaction of a killed process for a new one by chance, one
        # time in five. By itself the client waits twice as long each time: five tries in 30 s.
        database = connection.database
        database.run_in_transaction = partial(
            database.run_in_transaction, default_retry_delay=_AGAIN_S
        )
        super().__init__(connection, mark="%s")
        self._url = url
        self._turn = ExitStack()
        self._holds = False

    def begin(self) -> None:
        self._turn.enter_context(turn(self._url))
        self._holds = True
        self._run("begin")

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def _end(self, statement: str) -> None:
        try:
            self._run(statement)
        finally:
            self._holds = False
            self._turn.close()

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if self._holds:
            return self._run(statement, *values)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                with turn(self._url):
                    return self._run(statement, *values)
            except Exception as error:
                # Another process has the emulator's one transaction: nothing of ours happened.
                aborted = isinstance(error, Aborted) or "ABORTED" in repr(error.__cause__)
                if not aborted or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        # BYTES travel as base64, which the DB-API leaves to its caller.
        given = [b64encode(value) if isinstance(value, bytes) else value for value in values]
        cursor.execute(_DDL.get(statement, statement).replace("?", "%s"), given or None)
        if cursor.description is None:
            return []
        packed = [column.type_code == TypeCode.BYTES for column in cursor.description]
        return [
            tuple(
                b64decode(v) if b and v is not None else v for b, v in zip(packed, row, strict=True)
            )
            for row in cursor.fetchall()
        ]

    def insert(self, *tasks: NewTask) -> None:
        for start in range(0, len(tasks), _ROWS):
            self._insert(tasks[start : start + _ROWS])

    def _insert(self, tasks: tuple[NewTask, ...]) -> None:
        group = "(PENDING_COMMIT_TIMESTAMP(), ?, ?, ?, ?, ?, ?, ?)"
        values = [
            value
            for t in tasks
            for value in (t.shard_id, t.task_id, t.queue, t.name, t.payload, t.headers, t.options)
        ]
        self.execute(
            "insert into late_task (created_at, shard_id, task_id, queue, name, payload, headers,"
            f" options) values {', '.join([group] * len(tasks))}",
            *values,
        )

    def close(self) -> None:
        if self._holds:
            self.rollback()
        super().close()
