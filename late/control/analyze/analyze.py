"""Ask a database who gets into whose way, and join that with what clients have logged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import Engine

from late.control.analyze import client_log, postgres, spanner
from late.control.analyze.report import Report, Transaction, Wait, report

SILENT = "this database says nothing of who waits for whom: the logs alone say what was seen"


class Seen(msgspec.Struct):
    """The answer of the server."""

    waits: list[Wait] = []
    transactions: list[Transaction] = []
    notes: list[str] = []
    tags: dict[int, str] = {}
    """Tags by server process."""
    for_s: float = 0.0


def look(engine: Engine, for_s: float) -> Seen:
    """Ask the server.

    Args:
        for_s: the time that PostgreSQL is sampled. Spanner has statistics of ten minutes.
    """
    name = engine.dialect.name
    if name == "postgresql":
        sampler = postgres.look(engine, for_s)
        notes = [postgres.HIDDEN] if sampler.hidden else []
        return Seen(sampler.waits, [], notes, sampler.tags, for_s)
    if name.startswith("spanner"):
        found = spanner.look(engine)
        if found is None:
            return Seen(notes=[spanner.MISSING])
        return Seen(*found, for_s=spanner.FOR_S)
    return Seen(notes=[SILENT])


def join(seen: Seen, logs: Sequence[Iterable[str]], server_logs: Sequence[Iterable[str]]) -> Report:
    """Make the report of what the server said and of these logs, each line by line."""
    waits = list(seen.waits)
    spans = [seen.for_s]
    for lines in logs:
        found = client_log.read(lines, seen.tags)
        waits += found.waits
        spans.append(found.for_s)
    for lines in server_logs:
        waits += postgres.deadlocks(lines)
    return report(waits, for_s=max(spans), transactions=seen.transactions, notes=seen.notes)
