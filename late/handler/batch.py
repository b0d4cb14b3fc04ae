"""The items of a batch handler: the arguments of many tasks, each with its own outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, overload

from late.handler import counts
from late.model.task import Counts

T = TypeVar("T")

BATCH_MAX = 1_000


class Item(Generic[T]):
    """One task of a batch. It ends as done unless `fail` is called."""

    __slots__ = ("_counts", "_name", "attempt", "failure", "headers", "task_id", "value")

    def __init__(
        self,
        value: T,
        *,
        task_id: str = "",
        attempt: int = 1,
        headers: Mapping[str, str] | None = None,
        name: str = "batch",
    ) -> None:
        """Make an item. A test needs the value only. `name` is the task's, for messages."""
        self.value = value
        """The task's argument."""
        self.task_id = task_id
        self.attempt = attempt
        """1 for the first attempt."""
        self.headers: Mapping[str, str] = {} if headers is None else headers
        """The producer's headers; empty if there are none."""
        self.failure: BaseException | None = None
        """The error that `fail` was given."""
        self._name = name
        self._counts: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Item {self.task_id} attempt {self.attempt}>"

    def fail(self, error: BaseException) -> None:
        """End this task alone, as if its handler had raised `error`.

        It is an exception, or one of `Retry`, `Snooze`, `Discard` and `Nack`.
        """
        self.failure = error

    def count(self, name: str, number: int = 1) -> None:
        """Count something that the business knows for this task; see `Context.count`.

        It counts if this task is done.

        Raises:
            ConfigError: a wrong name or number, or too many names.
        """
        counts.check(self._name, name, number)
        if number:
            self._counts[name] = self._counts.get(name, 0) + number

    @property
    def counts(self) -> Counts:
        """The counts of this task, ascending by name."""
        return tuple(sorted(self._counts.items()))


class Batch(Sequence[Item[T]]):
    """The items of one call, at least one."""

    shadow: bool
    """True if the group is a shadow: then the call must have no effect. See `Context.shadow`."""

    def __init__(self, items: Iterable[Item[T]], *, shadow: bool = False) -> None:
        self._items = tuple(items)
        self.shadow = shadow

    @classmethod
    def of(cls, *values: T) -> Batch[T]:
        """Make a batch of these arguments, for tests."""
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
