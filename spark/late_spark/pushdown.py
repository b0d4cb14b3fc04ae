"""The bounds that the filters which Spark pushes down imply for a read. Pure.

Spark evaluates filters again that are not `exact`, so these bounds need not be: they only must not
leave out a row that the filters take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from late_spark.bounds import TIMES, Bounds
from late_spark.times import micros

_EQUALS = {"shard_id": "shards", "queue": "queues", "consumer_group": "groups"}


def of(table: str, filters: Iterable[Filter]) -> Bounds:
    """The bounds that all `filters` together imply for a read of `table`."""
    found = Bounds()
    for each in filters:
        found = _narrowed(found, table, each)
    return found


def exact(one: Filter) -> bool:
    """Return True if a read by its bounds returns only rows that the filter takes.

    Shards, queues and groups are read exactly. Times are bounds of a journal, and the clock may
    have been put back in it, so Spark checks them again.
    """
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return len(path) == 1 and path[0] in _EQUALS and isinstance(one, EqualTo | In)


def _narrowed(bounds: Bounds, table: str, one: Filter) -> Bounds:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1:
        return bounds
    name = path[0]
    if name in _EQUALS and isinstance(one, EqualTo | In):
        given = one.value if isinstance(one, In) else [one.value]
        values = frozenset(value for value in given if value is not None)
        before = getattr(bounds, _EQUALS[name])
        narrowed: Any = values if before is None else before & values
        return replace(bounds, **{_EQUALS[name]: narrowed})
    column = "settled_us" if table == "usage" else TIMES[table]
    at = TIMES[table].removesuffix("_us")
    if name not in (column, at):
        return bounds
    if isinstance(one, EqualTo):
        us = _us(one.value)
        return bounds if us is None else _later(_earlier(bounds, us + 1), us)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        us = _us(one.value)
        return bounds if us is None else _later(bounds, us + isinstance(one, GreaterThan))
    if isinstance(one, LessThan | LessThanOrEqual):
        us = _us(one.value)
        return bounds if us is None else _earlier(bounds, us + isinstance(one, LessThanOrEqual))
    return bounds


def _later(bounds: Bounds, us: int) -> Bounds:
    return replace(bounds, from_us=us if bounds.from_us is None else max(bounds.from_us, us))


def _earlier(bounds: Bounds, us: int) -> Bounds:
    return replace(bounds, to_us=us if bounds.to_us is None else min(bounds.to_us, us))


def _us(value: Any) -> int | None:
    """Microseconds of what a filter compares with; None for what cannot be compared here."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    # A time without a zone would have to be read in the session's, which is not known here.
    if isinstance(value, datetime) and value.tzinfo is not None:
        return micros(value)
    return None
