"""Attempts that workers offer to each other: the rows of `late_offer`.

The owner of a shard writes and removes its rows. Another worker takes one, runs the attempt, and
writes its answer there. A row can be taken only while its owner holds the lease of the shard under
the row's epoch: so a row that a former owner left behind starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    exists,
    insert,
    or_,
    select,
    text,
    update,
)

from late.control.database import Part
from late.control.sql.rows import now_us
from late.control.workers import names_of
from late.model.offers import Answer, Offer, Offered, OfferKey, OfferState
from late.model.task import ShardId, TaskId
from late.schema.engine import reading, write
from late.schema.notices import TELL_FLEET
from late.schema.tables import lease, offer

FOUND_MAX = 1_000
"""The most offers that one look finds."""
_offered = msgspec.json.Decoder(Offered)
_answer = msgspec.json.Decoder(Answer)
_names = msgspec.json.Decoder(tuple[str, ...])


class OfferControl(Part):
    """Offers of attempts. See `Control` for what all methods raise."""

    # -- for the owner ---------------------------------------------------------------------------

    def put(self, offers: Sequence[Offer]) -> None:
        """Write offers of one owner. One that is there already stays as it is: the answer to an
        earlier call may have been lost, and somebody may have taken it since."""

        def put(connection: Connection) -> None:
            at_us = now_us(connection)
            written = connection.execute(select(offer).where(offer.c.owner == offers[0].owner))
            there = {(_key(row), row.epoch) for row in written}
            rows = [_row(each, at_us) for each in offers if (each.key, each.epoch) not in there]
            if rows:
                connection.execute(insert(offer), rows)
                if connection.dialect.name == "postgresql":
                    connection.execute(text(f"select {TELL_FLEET}"))

        write(self._database.engine, put)

    def states(self, owner: str) -> list[OfferState]:
        """Return all offers of a worker, as they are now."""
        with reading(self._database.engine) as connection:
            rows = connection.execute(select(offer).where(offer.c.owner == owner)).all()
        return [_state(row) for row in rows]

    def withdraw(self, offers: Sequence[Offer], *, untaken: bool = False) -> list[Offer]:
        """Remove offers, with `untaken` only those that nobody has taken; return the removed."""
        return self._each(offers, lambda c, each: _withdraw(c, each, untaken))

    def handlers(self, worker_ids: Collection[str]) -> dict[str, frozenset[str] | None]:
        """Return worker id -> the names of the tasks that it has declared; None: not known."""
        with reading(self._database.engine) as connection:
            return names_of(connection, worker_ids)

    # -- for the worker that runs them -----------------------------------------------------------

    def find(self, me: str, groups: Collection[str]) -> list[Offer]:
        """Return offers of others that nobody has taken and that `me` has not refused, the oldest
        first; and those that `me` has taken and not answered, as it may not know of them."""
        free = or_(offer.c.runner.is_(None), (offer.c.runner == me) & offer.c.answer.is_(None))
        open_ = free & (offer.c.owner != me)
        with reading(self._database.engine) as connection:
            rows = connection.execute(
                select(offer)
                .where(open_, offer.c.consumer_group.in_(sorted(groups)), _held())
                .order_by(offer.c.offered_at_us)
                .limit(FOUND_MAX)
            ).all()
        return [_offer(row) for row in rows if me not in _names.decode(row.refused_by)]

    def take(self, me: str, offers: Sequence[Offer]) -> list[Offer]:
        """Take offers; return those that `me` has now. Of several workers one gets each."""
        return self._each(offers, lambda c, each: _take(c, each, me))

    def answer(self, me: str, answers: Sequence[tuple[Offer, Answer]]) -> list[Offer]:
        """Write how attempts ended; return those whose owner still waits for it."""
        mine, given = offer.c.runner == me, dict(answers)

        def tell(connection: Connection, each: Offer) -> bool:
            text = msgspec.json.encode(given[each]).decode()
            return _change(connection, each, mine, answer=text)

        return self._each([*given], tell)

    def give_back(self, me: str, offers: Sequence[Offer], *, refused: bool) -> list[Offer]:
        """Leave offers to others; `refused`: `me` is not to take them again."""
        return self._each(offers, lambda c, each: _give_back(c, each, me, refused))

    def _each(
        self, offers: Sequence[Offer], change: Callable[[Connection, Offer], bool]
    ) -> list[Offer]:
        """Change offers in one transaction; return those for which `change` did."""

        def apply(connection: Connection) -> list[Offer]:
            return [each for each in offers if change(connection, each)]

        return write(self._database.engine, apply) if offers else []


def sweep(connection: Connection) -> int:
    """Remove the offers whose owner has lost the shard; return their number."""
    return int(connection.execute(delete(offer).where(~_held())).rowcount)


def _is(each: Offer) -> ColumnElement[bool]:
    return and_(
        offer.c.consumer_group == each.key.group,
        offer.c.shard_id == each.key.shard_id,
        offer.c.task_id == each.key.task_id,
        offer.c.epoch == each.epoch,
    )


def _held() -> ColumnElement[bool]:
    """The owner holds the lease of the shard, under the epoch of the offer."""
    return exists(
        select(lease.c.epoch).where(
            lease.c.consumer_group == offer.c.consumer_group,
            lease.c.shard_id == offer.c.shard_id,
            lease.c.owner == offer.c.owner,
            lease.c.epoch == offer.c.epoch,
        )
    )


def _change(connection: Connection, each: Offer, *more: Any, **values: Any) -> bool:
    return bool(connection.execute(update(offer).where(_is(each), *more).values(**values)).rowcount)


def _withdraw(connection: Connection, each: Offer, untaken: bool) -> bool:
    same = [_is(each)]
    if untaken:
        same.append(offer.c.runner.is_(None))
    return bool(connection.execute(delete(offer).where(*same)).rowcount)


def _take(connection: Connection, each: Offer, me: str) -> bool:
    free = or_(offer.c.runner.is_(None), offer.c.runner == me)
    return _change(connection, each, free, _held(), runner=me)


def _give_back(connection: Connection, each: Offer, me: str, refused: bool) -> bool:
    mine = offer.c.runner == me
    found = connection.execute(select(offer.c.refused_by).where(_is(each), mine)).scalar()
    if found is None:
        return False
    names = sorted({*_names.decode(found), *([me] if refused else [])})
    text = msgspec.json.encode(names).decode()
    return _change(connection, each, mine, runner=None, refused_by=text)


def _row(each: Offer, at_us: int) -> dict[str, Any]:
    return {
        "consumer_group": each.key.group,
        "shard_id": each.key.shard_id,
        "task_id": each.key.task_id,
        "owner": each.owner,
        "epoch": each.epoch,
        "attempt": msgspec.json.encode(each.attempt).decode(),
        "offered_at_us": at_us,
        "refused_by": "[]",
    }


def _key(row: Any) -> OfferKey:
    return OfferKey(row.consumer_group, ShardId(row.shard_id), TaskId(row.task_id))


def _offer(row: Any) -> Offer:
    return Offer(_key(row), row.owner, row.epoch, _offered.decode(row.attempt))


def _state(row: Any) -> OfferState:
    answer = None if row.answer is None else _answer.decode(row.answer)
    refused = frozenset(_names.decode(row.refused_by))
    return OfferState(_key(row), row.epoch, refused, row.runner, answer)
