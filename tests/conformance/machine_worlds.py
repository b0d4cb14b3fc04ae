"""Databases for the state machine: fakes (`machine_fakes`) and real ones, behind one face.

A `World` gives the seam (`Store`) and, beside it, what producers do: a transaction that begins,
inserts, saves, rolls back, prepares, commits, dies. What a kind of database cannot do is a trait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from late import outbox
from late.model.task import NewTask
from late.schema.engine import make_engine, write
from late.store import open_store
from late.store.base import Store
from tests.conformance.backends import Backend, Raw

T = TypeVar("T")

TABLES = ("late_task", "late_settlement", "late_lease", "late_timer", "late_dead", "late_worker")


class Transaction(Protocol):
    """A producer's, open since it was made."""

    def insert(self, tasks: Sequence[NewTask]) -> None: ...

    def savepoint(self, name: str) -> None: ...

    def rollback_to(self, name: str) -> None: ...

    def prepare(self) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def crash(self) -> None:
        """The client goes away without a word."""


class World(Protocol):
    """One database, empty after `reset`."""

    exclusive: bool
    """One transaction writes at a time: whoever else wants to must wait for it."""
    savepoints: bool
    prepares: bool
    """Whether a transaction can be prepared, and be committed by somebody else."""
    stores: Sequence[Store]
    """Of two processes."""
    prunes_max: int
    """How many rounds of maintenance one example can afford."""
    url: str | None
    """For the control plane, if it has a database to look at."""

    def run(self, call: Coroutine[Any, Any, T]) -> T: ...

    def begin(self) -> Transaction: ...

    def reset(self) -> None: ...

    def close(self) -> None: ...


class _RealTransaction:
    """On a connection of its own, through the adapter of a producer."""

    def __init__(self, world: RealWorld, raw: Raw) -> None:
        self._world = world
        self._raw = raw
        self._prepared: str | None = None
        raw.begin()

    def insert(self, tasks: Sequence[NewTask]) -> None:
        self._raw.insert(*tasks)

    def savepoint(self, name: str) -> None:
        self._raw.execute(f"savepoint {name}")

    def rollback_to(self, name: str) -> None:
        self._raw.execute(f"rollback to savepoint {name}")

    def prepare(self) -> None:
        self._prepared = self._world.next_name()
        self._raw.execute(f"prepare transaction '{self._prepared}'")

    def commit(self) -> None:
        self._end("commit")

    def abort(self) -> None:
        self._end("rollback")

    def _end(self, word: str) -> None:
        self._raw.execute(f"{word} prepared '{self._prepared}'" if self._prepared else word)
        self._world.give_back(self._raw)

    def crash(self) -> None:
        self._raw.close()
        if self._prepared:  # it outlives its client; somebody must end it
            self._raw = self._world.take()
            self.abort()


class _Buffered:
    """On Spanner nothing leaves the producer before the commit."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._rows: list[NewTask] = []

    def insert(self, tasks: Sequence[NewTask]) -> None:
        self._rows += tasks

    def commit(self) -> None:
        if self._rows:
            write(self._engine, lambda connection: outbox.insert(connection, self._rows))

    def abort(self) -> None:
        """Nothing was sent."""

    crash = abort

    def savepoint(self, name: str) -> None:
        raise AssertionError("Spanner has none")

    rollback_to = savepoint

    def prepare(self) -> None:
        raise AssertionError("nor this")


class RealWorld:
    """A database of the suite; two stores, and connections for producers."""

    def __init__(self, backend: Backend, url: str) -> None:
        self.url: str | None = url
        self._backend = backend
        self._where = url
        self._names = 0
        self._free: list[Raw] = []
        self._loop = asyncio.new_event_loop()
        self.stores: Sequence[Store] = ()
        self._open()
        self._raw = backend.raw(url)
        self._engine = make_engine(url) if backend.emulated else None
        self.savepoints = backend.savepoints
        self.exclusive = self.stores[0].features.commit_order and backend.savepoints
        self.prepares = self.savepoints and not self.exclusive and self._can_prepare()
        self.prunes_max = 1

    def _open(self) -> None:
        self.stores = (open_store(self._where), open_store(self._where))
        for store in self.stores:
            self.run(store.open())

    def _close(self) -> None:
        for store in self.stores:
            self.run(store.close())

    def _can_prepare(self) -> bool:
        ((count,),) = self._raw.execute("show max_prepared_transactions")
        return bool(count != "0")

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def next_name(self) -> str:
        self._names += 1
        return f"machine_{self._names}"

    def take(self) -> Raw:
        return self._free.pop() if self._free else self._backend.raw(self._where)

    def give_back(self, raw: Raw) -> None:
        self._free.append(raw)

    def begin(self) -> Transaction:
        if self._engine is not None:
            return _Buffered(self._engine)
        return _RealTransaction(self, self.take())

    def reset(self) -> None:
        # A store may remember what can only grow, such as how far a journal was pruned.
        self._close()
        for table in TABLES:
            self._raw.execute(f"delete from {table} where true")
        self._open()

    def close(self) -> None:
        self._close()
        for raw in (*self._free, self._raw):
            raw.close()
        if self._engine is not None:
            self._engine.dispose()
        self._loop.close()
