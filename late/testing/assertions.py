"""Assertions about the tasks of a transaction, read through that transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import closing
from typing import Any, overload

import msgspec

from late import outbox
from late.app.task import Task
from late.model import validation as validate
from late.model.task import Options, Record, TaskId
from late.outbox.adapters.lookup import find
from late.outbox.base import Answer, AsyncTransaction, Statement, SyncTransaction
from late.store.sqlite.guard import path_of

_COLUMNS = "shard_id, task_id, queue, name, payload, headers, options, created_at_us"


class Enqueued(msgspec.Struct, frozen=True):
    """One task in the log."""

    task_id: TaskId
    queue: str
    args: dict[str, Any]
    options: Options
    headers: dict[str, str]


@overload
def assert_enqueued(
    where: SyncTransaction | str,
    task: Task[Any, Any],
    *,
    args: Mapping[str, object] | None = ...,
    count: int | None = ...,
    queue: str | None = ...,
) -> list[Enqueued]: ...
@overload
def assert_enqueued(
    where: AsyncTransaction,
    task: Task[Any, Any],
    *,
    args: Mapping[str, object] | None = ...,
    count: int | None = ...,
    queue: str | None = ...,
) -> Awaitable[list[Enqueued]]: ...
def assert_enqueued(
    where: Any,
    task: Task[Any, Any],
    *,
    args: Mapping[str, object] | None = None,
    count: int | None = None,
    queue: str | None = None,
) -> Any:
    """Assert that calls of `task` are in the log, and return those that match, oldest first.

    Args:
        where: a transaction, with its uncommitted tasks; or a URL, for committed tasks. Tasks that
            a worker has run and removed are not in the log any more.
        args: arguments that must be equal; others may have any value.
        count: the exact number, 0 for none; None for at least one.
        queue: the queue of the tasks; None for any.

    Raises:
        AssertionError: they are not there. The message names the tasks that were found.
    """

    def judge(answer: Answer) -> list[Enqueued]:
        found = [_enqueued(task, row) for row in answer.rows]
        return _judge(task.name, found, args, count, queue)

    # The name cannot contain quotes, so it is put into the text: drivers differ in the style of
    # parameters.
    sql = f"select {_COLUMNS} from late_task where name = '{validate.name(task.name, 'name')}'"
    statement = Statement(f"{sql} order by task_id", (), fetch=True)
    if isinstance(where, str):
        return judge(_read(where, statement))
    opener, asynchronous = find(where)
    if not asynchronous:
        return judge(opener(where).execute(statement))

    async def look() -> list[Enqueued]:
        into = await opener(where)
        return judge(await into.execute(statement))

    return look()


def _read(url: str, statement: Statement) -> Answer:
    if not url.startswith("sqlite"):
        with outbox.connect(url) as tx:
            opener, _ = find(tx)
            answer: Answer = opener(tx).execute(statement)
            return answer
    # `connect` would take the write lock, which the test itself may hold.
    with closing(sqlite3.connect(path_of(url))) as connection:
        return Answer(0, connection.execute(statement.sql).fetchall())


def _enqueued(task: Task[Any, Any], row: Sequence[Any]) -> Enqueued:
    shard_id, task_id, queue, name, payload, headers, options, created_at_us = row
    record = Record(
        shard_id=shard_id,
        position=0,
        task_id=TaskId(str(task_id)),
        queue=queue,
        name=name,
        payload=bytes(payload),
        headers=headers,
        options=options,
        created_at_us=created_at_us,
        sequence=0,
    )
    asked = msgspec.json.decode(options, type=Options) if options else Options()
    return Enqueued(
        task_id=record.task_id,
        queue=queue,
        args=task.decode(record, asked),
        options=asked,
        headers=msgspec.json.decode(headers, type=dict[str, str]) if headers else {},
    )


def _judge(
    name: str,
    found: list[Enqueued],
    args: Mapping[str, object] | None,
    count: int | None,
    queue: str | None,
) -> list[Enqueued]:
    wanted = dict(args or {})
    matching = [
        one
        for one in found
        if (queue is None or one.queue == queue)
        and all(key in one.args and one.args[key] == value for key, value in wanted.items())
    ]
    if matching if count is None else len(matching) == count:
        return matching
    expected = "at least one" if count is None else str(count)
    where = f" in queue {queue!r}" if queue is not None else ""
    lines = "".join(f"\n  queue={one.queue!r} args={one.args!r}" for one in found[:20])
    raise AssertionError(
        f"expected {expected} {name!r}{where} with {wanted!r}, found {len(matching)};"
        f" all {name!r} in the log: {len(found)}{lines}"
    )
