"""The tasks that the other workers handle, as far as they have declared it.

A worker declares its tasks once, when it joins, so what is known of it stays true for its life. Of
a worker that has not declared itself, or was not read yet, nothing is known: it may run anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from time import monotonic

from late.concurrency import in_thread
from late.model.handlers import handles

READ_S = 5.0
"""The shortest time between two reads. In between, a worker that is not known may run anything."""


class DeclaredHandlers:
    """Tells that nobody handles a task, if that is known.

    Args:
        read: returns worker id -> the names that it has declared, None: not known. It is called in
            a thread, and only while something cannot run. Raises `StoreError`.
    """

    def __init__(
        self,
        read: Callable[[Collection[str]], Mapping[str, frozenset[str] | None]],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._names: dict[str, frozenset[str]] = {}
        self._read_at = -inf

    def nobody(self, others: frozenset[str], queue: str, name: str) -> bool:
        """Tell whether each of these workers is known and none of them handles the task."""
        names = self._names
        return all(each in names and not handles(names[each], queue, name) for each in others)

    async def learn(self, others: frozenset[str]) -> None:
        """Read what is not known of these workers, and forget the rest.

        Raises:
            StoreError: nothing was read.
        """
        unknown = others - self._names.keys()
        if not unknown or self._clock() < self._read_at + READ_S:
            return
        found = await in_thread(self._read, unknown)
        self._read_at = self._clock()
        known = {each: names for each, names in found.items() if names is not None}
        kept = {each: names for each, names in self._names.items() if each in others}
        self._names = kept | known
