"""The advice for two transactions that get into each other's way. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from late.observability.conflicts import role_of

_WRITES = "settle take release beat claim adopt free"
_PRUNING = "compact delete delete_batch delete_settlements delete_workers"
OWN = frozenset(f"{_WRITES} {_PRUNING}".split())
"""The names of late's own transactions on Spanner, behind the class in their tag."""
_OWN_ADVICE = (
    "nothing in your code: these are heartbeats, takeovers and settlements of late itself. "
    "Fewer workers or fewer shards make fewer of them"
)
_EMULATOR = (
    "on Spanner's emulator nothing: it takes one transaction at a time and aborts the others, "
    "whatever they touch"
)

_CHANGES_TABLE = re.compile(
    r"(?is)\s*(?:/\*.*?\*/\s*)*(?:alter|create|drop|truncate|reindex|vacuum|cluster|lock)\s"
)


def advice(
    tags: tuple[str, str],
    kinds: Collection[str],
    places: Sequence[str],
    *,
    directions: int,
    attempts_max: int,
    idle: bool,
    statements: Sequence[str] = (),
) -> list[str]:
    """Return what would help, the surest first.

    Args:
        places: the rows that the two met on; of a row that is not known, its table.
        directions: 2 if each of the two has waited for the other.
        idle: one of them held locks with no statement running.
        statements: those of both, with their tags.
    """
    if _is_own(tags, places):
        return [_OWN_ADVICE, *([_EMULATOR] if "aborted" in kinds else [])]
    # Services' transactions are in no queue, so no knob of a queue and no key of a task helps them.
    of_task = any(role_of(tag) for tag in tags)
    found = []
    if any(_CHANGES_TABLE.match(each) for each in statements):
        found.append(
            "set a short lock_timeout for what changes the table, and repeat it: while it waits, "
            "all others wait behind it. late top says for whom it waits"
        )
    if "deadlock" in kinds or (directions == 2 and len(places) > 1):
        found.append("take the rows in one order in both, such as by key")
    if tags[0] == tags[1] and of_task:
        found.append("give such tasks the row as their ordering_key: they then run in turn")
    if idle:
        found.append("call others before or after the transaction, not while it holds locks")
    if "serialization" in kinds:
        found.append("lock the row first (select ... for update), or use read committed")
    if "busy" in kinds:
        found.append("SQLite has one writer: shorter transactions, or PostgreSQL")
    if attempts_max > 2 and of_task:
        found.append("set retry_budget on the queue: repeats of the aborted make more conflicts")
    if {"lock_timeout", "deadline"}.intersection(kinds):
        found.append("make the transaction smaller: fewer rows, several commits")
    if not found:
        found.append("touch this row last, just before the commit")
    return found


def _is_own(tags: tuple[str, str], places: Sequence[str]) -> bool:
    """Return whether late itself is in its own way: no handler, and no table of the business.

    A task may have the name of a transaction of late's, so the tables are looked at as well.
    """
    own = [tag for tag in tags if _is_own_tag(tag)]
    known = [tag for tag in tags if tag and tag != "unknown"]
    tables = [table for place in places for table in place.partition("(")[0].split(",")]
    return bool(own) and own == known and all(table.startswith("late_") for table in tables)


def _is_own_tag(tag: str) -> bool:
    prefix, _, name = tag.partition(":")
    return prefix in ("late-foreground", "late-background") and name in OWN
