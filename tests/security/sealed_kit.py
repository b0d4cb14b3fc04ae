"""Sealed tasks, and somebody who can write the log but has no key."""

from __future__ import annotations

from typing import Any

import msgspec

import late
from late import outbox
from late.model.ids import new_id
from late.model.task import NewTask, Options, Record
from late.outbox import connect
from late.payload.codec import Encrypted, Signed

KEYS = {"k1": b"0123456789abcdef" * 2}
SEALS = [Signed, Encrypted]


def sealed_app(
    url: str, bind: Any = "require", seal: Any = Encrypted
) -> tuple[late.App, list[int]]:
    """An app with the task `refund`, and the amounts that it has refunded."""
    app = late.App(url, codec=seal(keys=KEYS, current="k1", bind_options=bind))
    ran: list[int] = []

    @app.task(name="refund", retry=late.Retry(max_attempts=1))
    async def refund(cents: int) -> None:
        ran.append(cents)
        if cents < 0:
            raise ValueError("no such refund")

    return app, ran


def written(app: late.App, cents: int, **options: Any) -> NewTask:
    """The row of a task that the app would write."""
    return app.row(app.tasks["refund"].options(**options).call(cents))


def put(url: str, *rows: NewTask) -> None:
    """Write rows as they are, each in a transaction of its own."""
    for row in rows:
        with connect(url) as tx:
            outbox.insert(tx, [row])


def copied(row: NewTask) -> NewTask:
    """What somebody makes of a row that he has read: its unique key is another's, and stays so."""
    return msgspec.structs.replace(row, unique_key=None, digest=None)


def changed(row: NewTask, **options: Any) -> NewTask:
    """The row with other options, and the rest as it was."""
    given = msgspec.json.decode(row.options or "{}", type=Options)
    text = msgspec.json.encode(msgspec.structs.replace(given, **options)).decode()
    return msgspec.structs.replace(row, options=text)


def renamed(row: NewTask) -> NewTask:
    """The row under a new id of its shard."""
    return msgspec.structs.replace(row, task_id=new_id(row.shard_id))


def read(row: NewTask, created_at_us: int = 0) -> tuple[Record, Options]:
    """The row as a worker reads it."""
    record = Record(row.shard_id, 1, row.task_id, row.queue, row.name, row.payload, row.headers,
                    row.options, created_at_us, 1)  # fmt: skip
    return record, msgspec.json.decode(row.options or "{}", type=Options)
