"""Read from the journal what a queue has done, and what its workers and knobs are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, Engine

from late.control.audit import entries
from late.control.reports import reports
from late.control.simulation.attempts import Counted, runs
from late.control.simulation.comparison import Read, Simulation, compare
from late.control.simulation.variants import Variant
from late.control.sql.knob_rows import of_queues
from late.control.sql.last_settlement import journals
from late.control.sql.rows import now_us
from late.control.status.usage import following, last_before
from late.errors import ConfigError
from late.model.task import Usage
from late.model.time_text import moment_us
from late.schema.engine import reading

JOBS = 100_000
"""Attempts of one run, about. Of more, several are run as one."""
ROWS, ROWS_MAX = 500, 300_000
"""Rows of one shard that one statement reads, and of all."""
SPAN_MIN_US = 60_000_000
HOUR_US = 3_600_000_000
VARIANTS_MAX = 10
_usage_of = msgspec.json.Decoder(tuple[Usage, ...]).decode


def simulate(
    engine: Engine,
    queue: str,
    *,
    since: str = "24h",
    group: str = "default",
    variants: Sequence[Variant] = (),
    slots: int | None = None,
    jobs: int = JOBS,
) -> Simulation:
    """Run the attempts of a queue again, with its knobs and with each variant.

    Args:
        since: a time with its zone, or an age.
        slots: those of each worker as it is, if no report is to say it.
        jobs: the attempts of one run, about: what is above is run several as one.

    Raises:
        ConfigError: no attempt of the queue is in the journal of that time, the time is too short
            or has too many rows, or there are too many variants.
    """
    if len(variants) > VARIANTS_MAX:
        raise ConfigError(f"{len(variants)} variants: up to {VARIANTS_MAX} at once")
    with reading(engine) as connection:
        found = read_journal(connection, queue, group, since)
    found.slots = slots or found.slots
    return compare(found, queue, group, variants, jobs)


def read_journal(connection: Connection, queue: str, group: str, since: str) -> Read:
    """Read the attempts of a group since then, and what holds its queues back.

    Raises:
        ConfigError: see `simulate`.
    """
    now = now_us(connection)
    since_us = moment_us(since, "--since", now)
    if now - since_us < SPAN_MIN_US:
        raise ConfigError(f"--since {since[:64]!r} is too short: give a minute or more")
    places = {key: last for key, last in journals(connection).items() if key[0] == group}
    if not places:
        raise ConfigError(f"group {group[:128]!r} has no journal: no worker has run for it")
    changed = entries(connection, subject=f"queue:{queue}", limit=100)
    read = Read(
        rows=[], shards=sorted(shard for _, shard in places), owners=set(), owners_all=set(),
        knobs=of_queues(connection),
        slots=max((each.report.slots for each in reports(connection) if each.live), default=0),
        changes=sum(each.at_us >= since_us for each in changed), now_us=now, since_us=since_us,
    )  # fmt: skip
    last = {
        key: each.seq
        for key, each in places.items()
        if each.settled_at_us is not None and each.settled_at_us >= since_us
    }
    for (_, shard_id), after in last_before(connection, last, since_us).items():
        _read_shard(connection, (group, shard_id), after, read)
    if not any(usage.queue == queue for row in read.rows for usage in row.usage):
        known = sorted({usage.queue for row in read.rows for usage in row.usage})
        raise ConfigError(
            f"the journal of group {group} has no attempt of queue {queue[:128]!r} since then; "
            f"it has {', '.join(known[:20]) or 'none of any queue'}"
        )
    return read


def _read_shard(connection: Connection, key: tuple[str, int], after: int, read: Read) -> None:
    before_us, owner = 0, ""
    while True:
        rows = [row for _, row in following(connection, [(key, after)], ROWS)]
        for row in rows:
            after, owner = row.seq, row.owner
            read.owners_all.add(owner)
            try:
                usage = tuple(each for each in _usage_of(row.usage or "[]") if runs(each))
            except msgspec.MsgspecError:
                usage = ()  # `late verify` tells of it
            until_us = row.settled_at_us
            from_us = until_us
            if row.first_seq is not None:
                from_us = max(before_us, until_us // HOUR_US * HOUR_US)
            before_us = until_us
            if usage:
                read.rows.append(Counted(key[1], min(from_us, until_us), until_us, usage))
        if len(read.rows) > ROWS_MAX:
            raise ConfigError(
                f"the journal of that time has more than {ROWS_MAX:,} rows: give a shorter --since"
            )
        if len(rows) < ROWS:
            break
    if owner:
        read.owners.add(owner)
