"""Loads of values from the database: those that wait are made together, at one moment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine

from late.cache.database import snapshot
from late.cache.versions import Answer, Versions
from late.errors import ConfigError
from late.model.task import TaskId

Loader = Callable[[Connection, Sequence[str]], Mapping[str, Any]]
SIZED_MAX = 10_000
"""The most objects of one value that are looked at."""


class _Request(msgspec.Struct, eq=False):
    keys: frozenset[str]
    after: frozenset[TaskId]
    answer: Answer | None = None
    error: Exception | None = None


class Loads:
    """The loads of one cache. One runs at a time; what is asked for meanwhile is the next one.

    Args:
        load: the service's function.
        versions: it gets what was loaded, under `guard`.
    """

    def __init__(self, load: Loader, versions: Versions, guard: threading.Lock) -> None:
        self._load = load
        self._versions = versions
        self._guard = guard
        self._turn = threading.Lock()
        self._waiting: list[_Request] = []
        self.loads = 0
        self.loaded = 0

    def get(self, engine: Engine, keys: Sequence[str], after: Sequence[TaskId] = ()) -> Answer:
        """Load the values of `keys`, as they are at a moment after this call.

        Raises:
            Exception: what the service's function raises, unchanged.
            StoreError: the database is away.
        """
        request = _Request(frozenset(keys), frozenset(after))
        with self._guard:
            self._waiting.append(request)
        with self._turn:
            if request.answer is None and request.error is None:
                with self._guard:
                    batch, self._waiting = self._waiting, []
                self._run(engine, batch)
        if request.answer is None:
            assert request.error is not None
            raise request.error
        return request.answer

    def _run(self, engine: Engine, batch: list[_Request]) -> None:
        try:
            answer = self._at_once(engine, batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for request in batch:  # One of them may be at fault.
                self._run(engine, [request])
            return
        except BaseException:  # This thread is told to end; the others go on by themselves.
            with self._guard:
                self._waiting += batch
            raise
        for request in batch:
            request.answer = answer

    def _at_once(self, engine: Engine, batch: list[_Request]) -> Answer:
        """Load the keys of all requests in one transaction."""
        keys = frozenset().union(*(request.keys for request in batch))
        after = frozenset().union(*(request.after for request in batch))
        with self._guard:
            load = self._versions.begin(keys, after, time.monotonic())
            self.loads += 1
            self.loaded += len(keys)
        failure: Exception | None = None
        try:
            with snapshot(engine) as (connection, moment):
                try:
                    found = self._load(connection, sorted(keys))
                    values = {key: _sized(found, key) for key in keys}
                except Exception as error:  # The service's own, which is not to be translated.
                    failure = error
            if failure is not None:
                raise failure
        except BaseException:
            with self._guard:
                self._versions.abandon(load)
            raise
        with self._guard:
            return self._versions.keep(load, moment, values)


def _sized(found: Mapping[str, Any], key: str) -> tuple[Any, int]:
    try:
        value = found.get(key)
    except AttributeError:
        kind = type(found).__name__
        raise ConfigError(f"the load of a cache returns a mapping by key, got {kind}") from None
    return value, size_of(value)


def size_of(value: object) -> int:
    """Return about the memory of a value in bytes: itself and what is in it, once each."""
    total, seen, left = 0, set[int](), [value]
    while left and len(seen) < SIZED_MAX:
        each = left.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each, 100)
        if isinstance(each, Mapping):
            left += each.keys()
            left += each.values()
        elif isinstance(each, (list, tuple, set, frozenset)):
            left += each
        elif not isinstance(each, (str, bytes, int, float)):
            left += getattr(each, "__dict__", {}).values()
            slots = getattr(type(each), "__slots__", ())
            names = [slots] if isinstance(slots, str) else slots
            left += [getattr(each, name, None) for name in names]
    return total
