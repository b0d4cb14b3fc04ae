"""What a batch handler gets: the arguments of many tasks, each with its own end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, overload

if TYPE_CHECKING:
    from late.handler.context import AsyncContext

T = TypeVar("T")

BATCH_MAX = 1_000


class Item(Generic[T]):
    """One task of a batch. It ends as done, unless it fails."""

    __slots__ = ("_context", "failure", "value")

    def __init__(self, value: T, context: AsyncContext | None = None) -> None:
        """`context` is None for an item that a test has made."""
        self.value = value
        """Its argument."""
        self._context = context
        self.failure: BaseException | None = None
        """What `fail` was given."""

    def __repr__(self) -> str:
        return f"<Item {self.task_id} attempt {self.attempt}>"

    @property
    def task_id(self) -> str:
        return "" if self._context is None else self._context.task_id

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return 1 if self._context is None else self._context.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        """What the producer gave as headers; empty if nothing."""
        return {} if self._context is None else self._context.headers

    def fail(self, error: BaseException) -> None:
        """End this task alone as if its handler had raised `error`: an exception, or one of
        `Retry`, `Snooze`, `Discard` and `Nack`."""
        self.failure = error


class Batch(Sequence[Item[T]]):
    """The items of one call, at least one."""

    def __init__(self, items: Iterable[Item[T]]) -> None:
        self._items = tuple(items)

    @classmethod
    def of(cls, *values: T) -> Batch[T]:
        """For tests: a batch of these arguments."""
        return cls(Item(value) for value in values)

    @property
    def values(self) -> list[T]:
        """The arguments alone, in order."""
        return [item.value for item in self._items]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item[T]]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> Item[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item[T]]: ...
    def __getitem__(self, index: int | slice) -> Item[T] | Sequence[Item[T]]:
        return self._items[index]
