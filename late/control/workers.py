"""Declarations of live workers, in their rows: the tasks that they handle, and their addresses.

The texts of handlers are read only where something cannot run, or an operator asks: hundreds of
names each. Workers of one version have the same text, so it is read once for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec
from sqlalchemy import Connection, Engine, func, select, update

from late.control.database import Part
from late.control.sql.rows import now_us
from late.model import handlers
from late.schema.engine import reading, write
from late.schema.tables import worker


class Declared(msgspec.Struct, frozen=True):
    """Live workers that have declared the same."""

    groups: tuple[str, ...]
    handlers: Mapping[str, str] | None
    """None: not known, as with a worker of an older version."""
    workers: int


def declared(connection: Connection) -> list[Declared]:
    """Return what the live workers have declared, in no order."""
    columns = worker.c.consumer_groups, worker.c.handlers
    rows = connection.execute(
        select(*columns, func.count().label("n"))
        .where(worker.c.expires_at_us > now_us(connection))
        .group_by(*columns)
    )
    return [
        Declared(tuple(_groups(row.consumer_groups)), handlers.read(row.handlers), row.n)
        for row in rows
    ]


class Known(msgspec.Struct, frozen=True):
    """A name that live workers handle; `@QUEUE` stands for a routed queue."""

    name: str
    workers: int


class Fleet(msgspec.Struct, frozen=True):
    """The handlers of an app beside those of the live workers of its group."""

    workers: int
    undeclared: int
    """The number of them that have declared nothing."""
    missing: tuple[Known, ...]
    """The names that this app does not handle."""
    differ: tuple[Known, ...]
    """The names that it handles with another signature."""


def compare(engine: Engine, mine: Mapping[str, str], group: str) -> Fleet:
    """Compare an app's handlers with those of the live workers of `group`.

    A name whose arguments are not known, in the app or in a worker, does not differ.
    """
    with reading(engine) as connection:
        found = [each for each in declared(connection) if group in each.groups]
    missing: Counter[str] = Counter()
    differ: Counter[str] = Counter()
    for each in found:
        for name, theirs in (each.handlers or {}).items():
            if name not in mine:
                missing[name] += each.workers
            elif theirs and mine[name] and theirs != mine[name]:
                differ[name] += each.workers
    return Fleet(
        workers=sum(each.workers for each in found),
        undeclared=sum(each.workers for each in found if each.handlers is None),
        missing=tuple(Known(*item) for item in sorted(missing.items())),
        differ=tuple(Known(*item) for item in sorted(differ.items())),
    )


def count(found: Collection[Declared], group: str, queue: str, name: str) -> int | None:
    """Count the live workers of a group that handle a task; None if none has declared it and some
    have declared nothing."""
    ours = [each for each in found if group in each.groups]
    known = [each for each in ours if each.handlers is not None]
    able = sum(e.workers for e in known if handlers.handles(e.handlers or {}, queue, name))
    return able if able or len(known) == len(ours) else None


def names_of(
    connection: Connection, worker_ids: Collection[str]
) -> dict[str, frozenset[str] | None]:
    """Return worker id -> the names that it has declared, None: not known. A worker without a row
    is left out."""
    rows = connection.execute(
        select(worker.c.worker_id, worker.c.handlers).where(
            worker.c.worker_id.in_(sorted(worker_ids))
        )
    ).all()
    texts: dict[str | None, frozenset[str] | None] = {}
    for text in {row.handlers for row in rows}:
        found = handlers.read(text)
        texts[text] = None if found is None else frozenset(found)
    return {row.worker_id: texts[row.handlers] for row in rows}


_groups = msgspec.json.Decoder(list[str]).decode


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a live worker that serves pulled tasks."""

    worker_id: str
    address: str
    """The `host:port` of its gRPC server."""


class EndpointControl(Part):
    """Endpoints of live workers. See `Control` for what all methods raise."""

    def all(self) -> list[Endpoint]:
        """Return the endpoints of live workers, ascending by worker; not every worker has one."""
        with reading(self._database.engine) as connection:
            rows = connection.execute(
                select(worker.c.worker_id, worker.c.endpoint)
                .where(worker.c.expires_at_us > now_us(connection), worker.c.endpoint.is_not(None))
                .order_by(worker.c.worker_id)
            ).all()
        return [Endpoint(*row) for row in rows]

    def announce(self, worker_id: str, address: str) -> None:
        """Store the address at which other processes reach this worker.

        The worker's row exists from its first heartbeat on; without it nothing is stored.
        """

        def tell(connection: Connection) -> None:
            connection.execute(
                update(worker).where(worker.c.worker_id == worker_id).values(endpoint=address)
            )

        write(self._database.engine, tell)
