"""Texts of statements that serve all databases: `{name}` is the place of a value or of a word.

They are for statements that not every task needs. Those that every task needs are in
`statements.py`, one text per database.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from late.outbox.base import Statement

Value = str | int

_MARK = re.compile(r"\{(\w+)\}")


class Words(NamedTuple):
    """The words that differ between databases."""

    now: str
    """The database's clock in microseconds."""
    insert: str = "insert"
    """Insert. Together with `ignore` at the end, rows that exist are left unchanged and not
    counted."""
    ignore: str = " on conflict do nothing"
    row: str = ""
    """`from` a table of one row, for databases in which a `where` needs a `from`."""
    turn: str = "1"
    """Wait for the turn of `unique_key`, where transactions that write do not follow one another
    anyway."""


def kind_of(name: str, value: Value) -> str:
    """Return the type for PostgreSQL: that of the value, or `uuid` for an id, by its name."""
    if isinstance(value, int):
        return "bigint"
    return "uuid" if name == "task_id" else "text"


def in_order(
    text: str, words: Words, values: dict[str, Value], mark: str, *, fetch: bool
) -> Statement:
    """Bind for drivers whose parameters have no names. Each use of a value is a new parameter.

    Args:
        mark: the text of a parameter; `{n}` in it is its number, from 1, and `{kind}` its type.
    """
    kinds = tuple([kind_of(name, value) for name, value in values.items()])
    sql, names = _ordered(text, words, tuple(values), kinds, mark)
    return Statement(sql, tuple([values[name] for name in names]), fetch)


@functools.lru_cache(256)
def _ordered(
    text: str, words: Words, names: tuple[str, ...], kinds: tuple[str, ...], mark: str
) -> tuple[str, list[str]]:
    """Return a text with its parameters marked, and the names of their values in order."""
    kind = dict(zip(names, kinds, strict=True))
    used: list[str] = []

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in Words._fields:
            return str(getattr(words, name))
        used.append(name)
        return mark.format(n=len(used), kind=kind[name])

    return _MARK.sub(put, text), used


def by_name(text: str, words: Words, values: dict[str, Value], *, fetch: bool) -> Statement:
    """Bind for Spanner. Each value is an array of one text, which all its drivers send alike."""

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in Words._fields:
            return str(getattr(words, name))
        element = f"cast(@{name} as array<string>)[offset(0)]"
        return f"cast({element} as int64)" if isinstance(values[name], int) else element

    params = {name: [str(value)] for name, value in values.items() if f"{{{name}}}" in text}
    return Statement(_MARK.sub(put, text), params, fetch)
