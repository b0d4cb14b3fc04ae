"""Assertions about the tasks of a transaction, read through that transaction."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Mapping, Sequence
from math import inf
from typing import Any, overload

import msgspec

from late import outbox
from late.app.task import Task
from late.errors import InvalidTask
from late.model.task import Options, Record, TaskId
from late.outbox import subject_keys
from late.outbox.base import Answer, AsyncTransaction, Steps, SyncTransaction
from late.outbox.connections import read
from late.outbox.execute import run, run_async
from late.outbox.insert import Target
from late.outbox.statements import GoogleSql
from late.payload.codec import owners

_SELECT = """
select shard_id, task_id, queue, name, payload, headers, options, {created}
  from late_task where name = {{name}} order by task_id
"""

_options = msgspec.json.Decoder(Options).decode


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
            a worker has run and removed are not in the log any more. On Spanner a URL: there the
            tasks of an open transaction cannot be read.
        args: arguments that must be equal; others may have any value.
        count: the exact number, 0 for none; None for at least one.
        queue: the queue of the tasks; None for any.

    Raises:
        AssertionError: they are not there. The message names the tasks that were found.
        InvalidTask: `where` is a transaction of Spanner.
    """

    def steps(into: Target) -> Steps[list[Enqueued]]:
        spanner = isinstance(into.dialect, GoogleSql)
        if spanner and not isinstance(where, str):
            raise InvalidTask(
                "on Spanner the tasks of an open transaction cannot be read: give the app's URL,"
                " after the commit"
            )
        sql = _SELECT.format(created="unix_micros(created_at)" if spanner else "created_at_us")
        answer = yield into.dialect.bind(sql, fetch=True, name=task.name)
        yield from _learn(task, answer, into)
        found = [_enqueued(task, row, encoded=spanner) for row in answer.rows]
        return _judge(task.name, found, args, count, queue)

    if isinstance(where, str):
        return read(where, steps)
    return run_async(where, steps) if outbox.is_async(where) else run(where, steps)


def _learn(task: Task[Any, Any], answer: Answer, into: Target) -> Steps[None]:
    """Read the keys of the subjects of tasks, which may be as uncommitted as the tasks."""
    ring = owners(task.codec)
    texts = {row[6] for row in answer.rows if row[6]}
    subjects = {_options(text).subject for text in texts}
    wanted = sorted(subject for subject in subjects if subject is not None)
    if ring is not None and wanted:
        found = yield from subject_keys.read(into.dialect, wanted)
        ring.learn(wanted, found, inf)


def _enqueued(task: Task[Any, Any], row: Sequence[Any], *, encoded: bool) -> Enqueued:
    """Return the task of a row. `encoded`: Spanner's client gives bytes as base64."""
    shard_id, task_id, queue, name, payload, headers, options, created_at_us = row
    record = Record(
        shard_id=shard_id,
        position=0,
        task_id=TaskId(str(task_id)),
        queue=queue,
        name=name,
        payload=b64decode(payload) if encoded else bytes(payload),
        headers=headers,
        options=options,
        created_at_us=created_at_us,
        sequence=0,
    )
    asked = _options(options) if options else Options()
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
