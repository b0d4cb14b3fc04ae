"""Does every task of the log have exactly one place? Asked of the database alone.

One read transaction that sees one moment, so that a running fleet raises no false alarm. Rows come
in streams (`places`); `account` and `journal` decide what is right and wrong, and are pure.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, select

from late.control.past.as_of import AsOf, NotKnown
from late.control.past.journal import Past, past_of
from late.control.past.moment import Moment
from late.control.sql.positions import registered
from late.control.sql.rows import now_us
from late.control.sql.shards import Shard, groups_of
from late.control.verify.journal_check import Journal, Settled
from late.control.verify.problems import Problem, Problems
from late.control.verify.rows_to_check import rows_of, shards_of, streamed
from late.control.verify.task_account import Account, Totals
from late.errors import ConfigError, StoreError
from late.model.task import Reads
from late.schema.engine import reading
from late.schema.tables import lane, lease, settlement
from late.store.common.open_tasks import EMPTY, open_of, outline_of


class Ledger(msgspec.Struct, frozen=True):
    """The account of one (group, shard)."""

    group: str
    shard_id: int
    owner: str | None
    seq: int
    """The last settlement; 0 where there is none: nobody ever owned it, all waits."""
    since_seq: int
    """The beginning of the kept journal: ends before it can no longer be counted."""
    totals: Totals
    ended: dict[str, int]
    """Tasks that have ended since, by how, as the journal counted them."""


class Verified(msgspec.Struct, frozen=True):
    """The result of `late verify`."""

    at_us: int
    ok: bool
    totals: Totals
    ledgers: tuple[Ledger, ...]
    problems_total: int
    problems: tuple[Problem, ...]
    """The first `problems.LISTED`."""
    notes: tuple[str, ...]
    as_of: AsOf | None = None
    """The past moment that was asked for; None: now."""


GONE = tuple(
    NotKnown(f"{of}.{place}", "the tables of then are gone: only the journal was judged")
    for of in ("totals", "ledgers.totals")
    for place in ("log", "waiting", "parked", "dead", "settled")
)
"""The parts that a journal does not tell of a past moment."""


def verify(
    engine: Engine, *, group_name: str | None, shard_id: int | None, moment: Moment | None = None
) -> Verified:
    """Make all accounts, ascending by (group, shard), and find what is wrong with them.

    Args:
        group_name: only this group.
        shard_id: only this shard.
        moment: a past moment. Where the database has kept no versions, the journal of then is
            judged and nothing else.

    Raises:
        ConfigError: no such group, or the detail of the journal does not reach back so far.
    """
    findings = Problems()
    ledgers = []
    journal_only = moment is not None and not moment.versions
    with reading(moment.engine if moment else engine) as connection:
        past = past_of(connection, moment.at_us) if moment and journal_only else None
        at_us = now_us(connection)
        leases = {
            (row.consumer_group, row.shard_id): row for row in connection.execute(select(lease))
        }
        known = set(groups_of(connection))
        reads = registered(connection)
        shards = set(past.stood) if past else shards_of(connection, known)
        if group_name is not None and group_name not in known | {name for name, _ in shards}:
            raise ConfigError(f"no consumer group {group_name[:128]!r}")
        for name, number in sorted(shards):
            if group_name not in (None, name) or shard_id not in (None, number):
                continue
            if past:
                ledgers.append(_journal_ledger(connection, (name, number), past, findings))
            else:
                held = leases.get((name, number))
                taken = reads.get(name, Reads())
                ledgers.append(_ledger(connection, (name, number), held, taken, findings))
        if not past:
            _groups(shards, known, group_name, shard_id, findings)
            _outside(connection, ledgers, findings)
    _unchecked(ledgers, findings)
    return Verified(
        at_us=moment.at_us if moment else at_us,
        ok=not findings.total,
        totals=sum((each.totals for each in ledgers), Totals()),
        ledgers=tuple(ledgers),
        problems_total=findings.total,
        problems=tuple(findings.problems),
        notes=tuple(findings.notes),
        as_of=moment.as_of(*(GONE if journal_only else ())) if moment else None,
    )


# --- one account ---------------------------------------------------------------------------------


def _ledger(
    connection: Connection, shard: Shard, held: Any, reads: Reads, findings: Problems
) -> Ledger:
    journal = _journal(connection, shard, findings)
    first, last = journal.first, journal.last
    try:
        begun, _ = _checkpoint(connection, shard, first)
        cursor, open_text = _checkpoint(connection, shard, last)
        open_tasks = open_of(open_text)
        rows = rows_of(connection, shard, cursor, begun, reads)
    except (StoreError, msgspec.MsgspecError) as error:
        seq = last.seq if last else 0
        findings.add("checkpoint", shard, f"settlement {seq} has no readable checkpoint: {error}")
        account = Account(shard, (), findings)
    else:
        account = Account(shard, open_tasks, findings)
        account.take(streamed(connection, rows))
        _, then = _checkpoint(connection, shard, journal.since)
        journal.balance(outline_of(then).count, len(open_tasks) + account.totals.parked)
    journal.close(None if held is None else held.epoch, account.ended_recently)
    return Ledger(
        *shard,
        owner=None if held is None else held.owner,
        seq=last.seq if last else 0,
        since_seq=first.seq if first else 0,
        totals=account.totals,
        ended=dict(sorted(journal.ended.items())),
    )


def _journal_ledger(connection: Connection, shard: Shard, past: Past, findings: Problems) -> Ledger:
    """Judge the journal of a past moment. The lease is of now, and not compared."""
    then = past.stood[shard].then
    journal = _journal(connection, shard, findings, through=then.seq)
    try:
        count = outline_of(then.open).count
    except msgspec.MsgspecError as error:
        findings.add("checkpoint", shard, f"settlement {then.seq}: {error}")
        count = 0
    return Ledger(
        *shard,
        owner=past.stood[shard].owner,
        seq=then.seq,
        since_seq=journal.first.seq if journal.first else 0,
        totals=Totals(open=count),
        ended=dict(sorted(journal.ended.items())),
    )


def _journal(
    connection: Connection, shard: Shard, findings: Problems, *, through: int | None = None
) -> Journal:
    journal = Journal(shard, findings)
    upto = () if through is None else (settlement.c.seq <= through,)
    columns = Settled.__struct_fields__
    statement = (
        select(*(settlement.c[name] for name in columns))
        .where(settlement.c.consumer_group == shard[0], settlement.c.shard_id == shard[1], *upto)
        .order_by(settlement.c.seq)
    )
    for row in streamed(connection, statement):
        journal.take(Settled(*row))
    again = (
        select(settlement.c.settlement_id, func.min(settlement.c.seq), func.max(settlement.c.seq))
        .where(settlement.c.consumer_group == shard[0], settlement.c.shard_id == shard[1], *upto)
        .group_by(settlement.c.settlement_id)
        .having(func.count() > 1)
    )
    for settlement_id, low, high in streamed(connection, again):
        what = f"settlements {low} and {high} have one id, {settlement_id[:128]!r}"
        findings.add("settlement_twice", shard, what)
    return journal


def _checkpoint(connection: Connection, shard: Shard, row: Settled | None) -> tuple[str, str]:
    """Return (cursor, open) of one settlement as texts; the beginning, where there is none."""
    if row is None:
        return "", EMPTY
    found = connection.execute(
        select(settlement.c.cursor, settlement.c.open).where(
            settlement.c.consumer_group == shard[0],
            settlement.c.shard_id == shard[1],
            settlement.c.seq == row.seq,
        )
    ).one()
    return found.cursor, found.open


# --- notes ---------------------------------------------------------------------------------------


def _groups(
    shards: set[Shard],
    known: set[str],
    group_name: str | None,
    shard_id: int | None,
    findings: Problems,
) -> None:
    for name, number in sorted(shards):
        if name not in known and group_name in (None, name) and shard_id in (None, number):
            what = "tasks of a consumer group that is not registered and was never owned"
            findings.add("group", (name, number), what)


def _outside(connection: Connection, ledgers: list[Ledger], findings: Problems) -> None:
    """Note what runs, or will run, and may surprise."""
    named: set[int] = set()
    for first, count in connection.execute(select(lane.c.first_shard, lane.c.shards)):
        named.update(range(first, first + count))
    outside = sorted({each.shard_id for each in ledgers if each.totals.log} - named)
    if outside:
        findings.notes.append(
            f"shards with tasks that no lane names: {_few(outside)} (workers run them)"
        )
    idle: dict[str, list[int]] = defaultdict(list)
    for each in ledgers:
        if not each.seq and each.totals.log:
            idle[each.group].append(each.shard_id)
    for name, numbers in idle.items():
        findings.notes.append(
            f"never owned in group {name}, all of it waits: shards {_few(numbers)}"
        )


def _unchecked(ledgers: list[Ledger], findings: Problems) -> None:
    cut = [each for each in ledgers if each.since_seq > 1]
    if cut:
        findings.notes.append(
            f"{len(cut)} of {len(ledgers)} journals are pruned at their beginning, or were reset:"
            " how tasks ended before was not compared with the log, nor were the rows that are gone"
        )


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown} and {len(numbers) - 10} more" if len(numbers) > 10 else shown
