"""Choose the ready task that starts next: priorities are weighted, so that nothing starves.

Tasks with priority >= 0 are *foreground*, below 0 *background*. While both wait, background gets
one start in nine (8 : 1), as long as it has room (`background.py`). Within a class a higher
priority goes first, equals in the order of the log. Strict priority over both classes was rejected:
a steady foreground would starve the rest.

What has waited for its time (`push_due`) does not wait behind a backlog as well: in its priority
every second start is one of those, while both wait. The other half is the backlog's, however many
fall due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

FOREGROUND_SHARE = 8


class ReadyQueue(Generic[T]):
    """A queue by priority. Unbounded: its owner's window bounds it."""

    def __init__(self, foreground: int = FOREGROUND_SHARE) -> None:
        self.foreground = foreground
        """Number of starts of the foreground for one of the background."""
        self._queues: dict[int, deque[T]] = {}
        self._order: list[int] = []  # priorities in use, highest first
        self.has_background = False
        """True when an item below priority 0 waits."""
        self.size = 0
        self._streak = 0  # foreground starts since the last background one
        self._due: dict[int, deque[T]] = {}  # by priority, and none of them is empty
        self._dues_turn = False

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[T]:
        """Yield everything that waits, by priority; the order between the classes means nothing."""
        for priority in self._order:
            yield from self._due.get(priority, ())
            yield from self._queues[priority]

    def push(self, item: T, priority: int = 0) -> None:
        """Add behind its equals."""
        (self._queues.get(priority) or self._queue(priority)).append(item)
        self.size += 1

    def push_due(self, item: T, priority: int = 0) -> None:
        """Add behind those of its priority that came due."""
        self._queue(priority)
        self._due.setdefault(priority, deque()).append(item)
        self.size += 1

    def push_all(self, items: Iterable[T], priority: int = 0) -> None:
        """Do as `push` for each."""
        queue = self._queues.get(priority) or self._queue(priority)
        before = len(queue)
        queue.extend(items)
        self.size += len(queue) - before

    def push_front(self, item: T, priority: int = 0) -> None:
        """Add before its equals: for a task that was interrupted after it had started."""
        self._queue(priority).appendleft(item)
        self.size += 1

    def _queue(self, priority: int) -> deque[T]:
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = deque()
            self._order = sorted(self._queues, reverse=True)
            self.has_background = self._order[-1] < 0
        return queue

    @property
    def background(self) -> int:
        """The number of items below priority 0."""
        queues = (*self._queues.items(), *self._due.items())
        return sum([len(queue) for priority, queue in queues if priority < 0])

    @property
    def top(self) -> int | None:
        """The highest priority that waits; None when empty."""
        return self._order[0] if self._order else None

    def can_pop(self, *, background: bool) -> bool:
        """Return whether something waits; without `background` only the foreground counts."""
        return bool(self._order) and (background or self._order[0] >= 0)

    def oldest(self) -> T:
        """Return the first of the highest priority; IndexError when empty."""
        priority = self._order[0]
        return (self._queues[priority] or self._due[priority])[0]

    def pop(self, *, newest: bool = False, background: bool = True) -> T:
        """Take out the next to start: the first of its priority, or the last one.

        Args:
            background: False leaves what is below priority 0.

        Raises:
            IndexError: nothing of that waits.
        """
        order = self._order
        if not self.can_pop(background=background):
            raise IndexError("pop from an empty ReadyQueue")
        priority = order[0]
        if len(order) > 1:
            priority = self._choose(background=background)
        queue = self._queues[priority]
        if newest and len(queue) > 1:
            self.size -= 1
            return queue.pop()
        return self._take_of(priority, 1)[0]

    def take(self, count: int, background: int | None = None) -> list[T]:
        """Do as `pop` so many times, or until it is empty.

        Args:
            background: the most of them below priority 0; None: any number.
        """
        found: list[T] = []
        left = count if background is None else background
        while self._order and len(found) < count:
            priority, most = self._order[0], count - len(found)
            both = priority >= 0 > self._order[-1]
            if both:  # as many as are in turn
                priority = self._choose(background=left > 0)
                most = min(most, max(1, self.foreground - self._streak + 1)) if left > 0 else most
            if priority < 0:
                most = min(1 if both else most, left)
                if most <= 0:
                    break
            several = self._take_of(priority, most)
            if priority < 0:
                left -= len(several)
            elif both:  # `_choose` has counted one
                self._streak = min(self._streak + len(several) - 1, self.foreground)
            found += several
        return found

    def cut_background(self, keep: int, goes: Callable[[T], bool]) -> list[T]:
        """Take out what is below priority 0 and may go, but the first `keep`; what has waited for
        its time stays."""
        found: list[T] = []
        for priority in [priority for priority in self._order if priority < 0]:
            kept: deque[T] = deque()
            for item in self._queues[priority]:
                (kept if keep > len(kept) or not goes(item) else found).append(item)
            keep = max(0, keep - len(kept))
            self._queues[priority] = kept
            if not kept and priority not in self._due:
                self._drop(priority)
        self.size -= len(found)
        return found

    def _take_of(self, priority: int, most: int) -> list[T]:
        """Take out up to `most` of one priority: those that came due and the others in turns."""
        queue = self._queues[priority]
        due = self._due.get(priority) if self._due else None
        several: list[T] = []
        while due and len(several) < most:
            self._dues_turn = not self._dues_turn
            several.append((due if self._dues_turn or not queue else queue).popleft())
        if due is not None and not due:
            del self._due[priority]
        several += [queue.popleft() for _ in range(min(most - len(several), len(queue)))]
        self.size -= len(several)
        if not queue and priority not in self._due:
            self._drop(priority)
        return several

    def _drop(self, priority: int) -> None:
        del self._queues[priority]
        self._order = sorted(self._queues, reverse=True)
        self.has_background = bool(self._order) and self._order[-1] < 0

    def _choose(self, *, background: bool = True) -> int:
        first, below = self._order[0], next((p for p in self._order if p < 0), None)
        if below is None or first < 0:
            return first
        if self._streak < self.foreground:
            self._streak += 1
        elif background:
            self._streak = 0
            return below
        return first
