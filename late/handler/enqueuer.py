"""Calls and apps by shape: tasks, calls and contexts enqueue without knowing `late.App`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from late.model.task import NewTask


class Enqueuer(Protocol):
    """The app of a task: it inserts calls. `late.App` satisfies it."""

    def enqueue(self, tx: Any, call: Any, /) -> Any:
        """Insert one call through `tx`: its id, or an awaitable of it where `tx` is async."""

    def enqueue_many(self, tx: Any, calls: Iterable[Any], /) -> Any:
        """Insert many calls through `tx`: their ids, or an awaitable of them."""

    def row(self, call: Any, /) -> NewTask:
        """The row that `call` would be inserted as."""


class AnyCall(Protocol):
    """One task to enqueue. `late.Call` satisfies it."""

    @property
    def app(self) -> Enqueuer: ...
