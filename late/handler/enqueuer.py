"""Protocols of calls and apps. With them tasks, calls and contexts need not import `late.App`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from late.model.task import NewTask


class Enqueuer(Protocol):
    """The app of a task: it inserts calls. `late.App` satisfies it."""

    def enqueue(self, tx: Any, call: Any, /) -> Any:
        """Insert one call through `tx`; return its id, or an awaitable of it if `tx` is async."""

    def enqueue_many(self, tx: Any, calls: Iterable[Any], /) -> Any:
        """Insert many calls through `tx`; return their ids, or an awaitable if `tx` is async."""

    def row(self, call: Any, /) -> NewTask:
        """Return the row that would be inserted for `call`."""


class AnyCall(Protocol):
    """One task to enqueue. `late.Call` satisfies it."""

    @property
    def app(self) -> Enqueuer: ...
