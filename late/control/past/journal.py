"""The journal, read backwards: where each shard stood at a moment, and what was counted since.

Where a shard stood is in the last settlement of then, as long as the next one is still a row of its
own: of a sum of several settlements nobody knows which of them came before the moment. What was
counted since leads back from what the tables hold now to what they held then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, select

from late.control.past.moment import said
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.shards import Shard
from late.control.status.usage import last_before
from late.control.verify.journal_check import ANEW, ENDS, RESETS
from late.errors import ConfigError
from late.model.histogram import lower
from late.model.task import ENQUEUED, Usage
from late.schema.tables import audit, settlement

_usage_of = msgspec.json.Decoder(tuple[Usage, ...]).decode
_REDRIVE = "late.redrive"
_CHUNK = 500
_LETTERS = ("dead.redrive", "dead.purge")
"""Actions of operators by which dead letters go."""
_REMOVED = "group.delete"


class Since(msgspec.Struct):
    """The counts of the settlements of one shard since a moment, by queue."""

    arrived: Counter[str] = msgspec.field(default_factory=Counter)
    """Records that the checkpoint has come to cover."""
    older: Counter[str] = msgspec.field(default_factory=Counter)
    """Those of them that were created before the moment for certain, by their ages."""
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    redriven: bool = False
    """A command has sent a dead letter back."""
    anew: bool = False
    """The group was reset, the database rebased, or a row cannot be read: nothing adds up."""

    def take(self, usage: Usage, after_us: int) -> None:
        """Add what one settlement has counted, which came so long after the moment."""
        if usage.outcome == ENQUEUED:
            self.arrived[usage.queue] += usage.count
            # An age is counted at the settlement or a little before.
            sure = sum(n for index, n in usage.waiting if lower(index) >= after_us)
            self.older[usage.queue] += sure
        elif usage.outcome in ENDS:
            self.ended[usage.queue] += usage.count
            self.redriven |= usage.name == _REDRIVE and usage.outcome == "done"


class Stood(msgspec.Struct, frozen=True):
    """The place of one (group, shard) at a moment."""

    then: Journal
    """The last settlement of then; without one it was not yet owned."""
    owner: str | None
    """The owner that had settled last."""
    now: Journal
    since: Since


class Past(msgspec.Struct, frozen=True):
    """The places of every (group, shard) that had begun at a moment."""

    at_us: int
    stood: Mapping[Shard, Stood]
    letters_moved: bool
    """True if an operator has redriven or purged dead letters since."""
    removed_groups: tuple[str, ...]
    """Groups that were removed since, with their journals."""


def past_of(connection: Connection, at_us: int, only: Shard | None = None) -> Past:
    """Read where each shard stood at `at_us`, and what was counted since.

    Args:
        only: this (group, shard) and no other.

    Raises:
        ConfigError: the detail of the journal does not reach back so far.
    """
    last = {key: each for key, each in journals(connection).items() if only in (None, key)}
    then = last_before(connection, {key: each.seq for key, each in last.items()}, at_us + 1)
    stood = {}
    for key, now in last.items():
        row = _row(connection, key, then[key])
        since = Since()
        follows = _follow(connection, key, then[key], at_us, since)
        if follows in RESETS and row is None:
            continue  # the group began later
        journal, owner = row or (Journal(), None)
        stood[key] = Stood(journal, owner, now, since)
    actions = select(audit.c.action, audit.c.subject).where(audit.c.at_us > at_us).distinct()
    done = connection.execute(actions.where(audit.c.action.in_((*_LETTERS, _REMOVED)))).all()
    removed = sorted(row.subject.removeprefix("group:") for row in done if row.action == _REMOVED)
    return Past(at_us, stood, any(row.action in _LETTERS for row in done), tuple(removed))


def _row(connection: Connection, key: Shard, seq: int) -> tuple[Journal, str] | None:
    found = connection.execute(
        select(settlement).where(
            settlement.c.consumer_group == key[0],
            settlement.c.shard_id == key[1],
            settlement.c.seq == seq,
        )
    ).first()
    if found is None:
        return None
    names = Journal.__struct_fields__
    return Journal(**{name: getattr(found, name) for name in names}), found.owner


def _follow(connection: Connection, key: Shard, then: int, at_us: int, since: Since) -> str | None:
    """Add up the settlements behind `then`, and return the owner of the first of them.

    Raises:
        ConfigError: the first of them is a sum, or others are gone.
    """
    first: str | None = None
    for row in _behind(connection, key, then):
        if first is None:
            first = row.owner
            summed = row.first_seq is not None and row.first_seq < row.seq
            if summed or (then == 0 and row.seq > 1 and row.owner not in RESETS):
                raise ConfigError(_too_old(connection, at_us))
            if then and row.seq != then + 1:
                raise ConfigError(
                    f"as of {said(at_us)}: settlements behind {then} of group {key[0]}, shard"
                    f" {key[1]} are missing; see `late verify`"
                )
        since.anew |= row.owner in ANEW
        try:
            for usage in _usage_of(row.usage or "[]"):
                since.take(usage, row.settled_at_us - at_us)
        except msgspec.MsgspecError:
            since.anew = True  # `late verify` tells of it
    return first


def _behind(connection: Connection, key: Shard, then: int) -> Iterator[Row[Any]]:
    columns = ("seq", "owner", "usage", "settled_at_us", "first_seq")
    statement = (
        select(*(settlement.c[name] for name in columns))
        .where(
            settlement.c.consumer_group == key[0],
            settlement.c.shard_id == key[1],
            settlement.c.seq > then,
        )
        .order_by(settlement.c.seq)
    )
    yield from connection.execute(statement, execution_options={"yield_per": _CHUNK})


def _too_old(connection: Connection, at_us: int) -> str:
    """Say since when every journal has its settlements one by one."""
    since_us = 0
    for key in journals(connection):
        columns = (settlement.c[name] for name in ("seq", "first_seq", "owner", "settled_at_us"))
        of_shard = select(*columns).where(
            settlement.c.consumer_group == key[0], settlement.c.shard_id == key[1]
        )
        summed = of_shard.where(settlement.c.first_seq < settlement.c.seq)
        newest = connection.execute(summed.order_by(settlement.c.seq.desc()).limit(1)).first()
        oldest = connection.execute(of_shard.order_by(settlement.c.seq).limit(1)).first()
        for row in (newest, oldest):
            if row is not None and row.seq > 1 and row.owner not in RESETS:
                since_us = max(since_us, row.settled_at_us)
    reach = said(since_us + 999_999)
    return (
        f"as of {said(at_us)}: the journal has each settlement since {reach} only, and sums or"
        " nothing before (LATE_JOURNAL_DETAIL_S)"
    )
