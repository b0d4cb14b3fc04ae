"""One text of a statement for all databases: `{name}` where a value goes, and a few words that
differ.

For statements that are not on the path of every task. Those are written out in `statements.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from late.outbox.base import Statement

Value = str | int

_MARK = re.compile(r"\{(\w+)\}")


class Words(NamedTuple):
    """The words that differ from database to database."""

    now: str
    """The database's clock, microseconds."""
    insert: str = "insert"
    """With `ignore` at the end: leave alone what is there, and do not count it."""
    ignore: str = " on conflict do nothing"
    row: str = ""
    """`from` a table of one row, where a `where` needs one."""


def kind_of(name: str, value: Value) -> str:
    """The type that PostgreSQL is told: by the value, and an id by its name."""
    if isinstance(value, int):
        return "bigint"
    return "uuid" if name == "task_id" else "text"


def in_order(
    text: str,
    words: Words,
    values: dict[str, Value],
    mark: Callable[[int, str], str],
    *,
    fetch: bool,
) -> Statement:
    """Bind for drivers whose parameters have no names: each use of a value is another parameter.

    Args:
        mark: the n-th parameter, from 1, of a type.
    """
    params: list[Any] = []

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in Words._fields:
            return str(getattr(words, name))
        params.append(values[name])
        return mark(len(params), kind_of(name, values[name]))

    return Statement(_MARK.sub(put, text), tuple(params), fetch)


def by_name(text: str, words: Words, values: dict[str, Value], *, fetch: bool) -> Statement:
    """Bind for Spanner: each value is an array of one text, which all its drivers pass alike."""

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in Words._fields:
            return str(getattr(words, name))
        element = f"cast(@{name} as array<string>)[offset(0)]"
        return f"cast({element} as int64)" if isinstance(values[name], int) else element

    params = {name: [str(value)] for name, value in values.items() if f"{{{name}}}" in text}
    return Statement(_MARK.sub(put, text), params, fetch)
