"""The autoscaler's journal: the owner of each controller, and every decision.

`late_controller` has one row for each controller: its owner, the epoch that fences former owners,
and the times of the last steps up and down. These times are stored, so that a cool-down continues
when the owner changes. All times are by the database's clock.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, delete, insert, select, update

from late.autoscaler.autoscaler import STARTED, Term, TermLost
from late.autoscaler.decide import Decision
from late.control.database import Part
from late.control.sql.rows import locking, now_us, object_of
from late.errors import ConfigError
from late.schema.engine import reading, write
from late.schema.tables import controller, decision

KEEP_US = 90 * 86_400 * 1_000_000
PRUNE_EACH = 500
NAME_MAX = 128


class ControllerView(msgspec.Struct, frozen=True):
    """One autoscaler, as `late autoscale status` shows it."""

    name: str
    owner: str | None
    """None if nobody acts, or if the last owner did not renew its term in time."""
    epoch: int
    looked_at_us: int
    last: str | None
    up_us: int | None
    down_us: int | None
    decisions: int


class DecisionView(msgspec.Struct, frozen=True):
    """One row of the journal."""

    controller: str
    seq: int
    epoch: int
    owner: str
    at_us: int
    rule: str
    from_size: int
    to_size: int
    wanted: int
    inputs: dict[str, Any] | None
    why: str
    result: str


class AutoscaleJournal:
    """The journal of `late.autoscaler.autoscaler`, kept in the tables."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def hold(self, name: str, owner: str, ttl_s: float) -> Term | None:
        if not 0 < len(name) <= NAME_MAX:
            raise ConfigError(f"a controller's name has 1 to {NAME_MAX} characters")

        def take(connection: Connection) -> Term | None:
            now = now_us(connection)
            until = now + round(ttl_s * 1_000_000)
            row = connection.execute(_locked(connection, name)).first()
            if row is None:
                values = {"epoch": 1, "seq": 0, "looked_at_us": now}
                connection.execute(
                    insert(controller).values(name=name, owner=owner, expires_at_us=until, **values)
                )
                return Term(name, owner, 1, now)
            mine = row.owner == owner
            if not mine and row.owner is not None and row.expires_at_us > now:
                return None
            epoch = row.epoch if mine else row.epoch + 1
            connection.execute(
                update(controller)
                .where(controller.c.name == name)
                .values(owner=owner, epoch=epoch, expires_at_us=until)
            )
            if not mine:
                # The former owner did not finish these, and their end is not known here.
                connection.execute(
                    update(decision)
                    .where(decision.c.controller == name, decision.c.result == STARTED)
                    .values(result="unknown: its controller ended")
                )
            return Term(name, owner, epoch, now, row.up_us, row.down_us)

        return write(self._engine, take)

    def looked(self, term: Term, text: str) -> None:
        def keep(connection: Connection) -> None:
            _fenced(connection, term)
            _set(connection, term, looked_at_us=now_us(connection), last=text[:1000])

        write(self._engine, keep)

    def record(self, term: Term, made: Decision, result: str) -> int:
        def add(connection: Connection) -> int:
            seq = int(_fenced(connection, term).seq) + 1
            connection.execute(
                insert(decision).values(
                    controller=term.controller,
                    seq=seq,
                    epoch=term.epoch,
                    owner=term.owner,
                    at_us=made.at_us,
                    rule=made.rule,
                    from_size=made.from_size,
                    to_size=made.to_size,
                    wanted=made.wanted,
                    inputs=msgspec.json.encode(made.inputs).decode(),
                    why=made.why,
                    result=result,
                )
            )
            changes: dict[str, Any] = {"seq": seq, "looked_at_us": made.at_us}
            if result == STARTED:
                changes["up_us" if made.to_size > made.from_size else "down_us"] = made.at_us
            text = f"{made.rule}: {made.from_size} to {made.to_size}, {result}. {made.why}"
            _set(connection, term, last=text.strip(". ")[:1000], **changes)
            if seq % PRUNE_EACH == 0:
                old = decision.c.at_us < made.at_us - KEEP_US
                connection.execute(
                    delete(decision).where(decision.c.controller == term.controller, old)
                )
            return seq

        return write(self._engine, add)

    def finish(self, term: Term, seq: int, result: str) -> None:
        def end(connection: Connection) -> None:
            _fenced(connection, term)
            changes: dict[str, Any] = {"last": f"decision {seq} {result}"[:1000]}
            if result.startswith("failed"):
                changes.update(up_us=term.up_us, down_us=term.down_us)
            _set(connection, term, looked_at_us=now_us(connection), **changes)
            key = (decision.c.controller == term.controller, decision.c.seq == seq)
            connection.execute(update(decision).where(*key).values(result=result[:1000]))

        write(self._engine, end)

    def give_back(self, term: Term) -> None:
        def end(connection: Connection) -> None:
            _fenced(connection, term)
            _set(connection, term, owner=None)

        write(self._engine, end)


def _locked(connection: Connection, name: str) -> Any:
    return locking(connection, select(controller).where(controller.c.name == name))


def _fenced(connection: Connection, term: Term) -> Any:
    """Lock and return the row of a term's controller.

    A term that has run out is still valid until another owner takes the controller.

    Raises:
        TermLost: another owner has taken the controller.
    """
    row = connection.execute(_locked(connection, term.controller)).first()
    if row is None or row.owner != term.owner or row.epoch != term.epoch:
        raise TermLost(f"{term.controller}: another controller acts, nothing was changed")
    return row


def _set(connection: Connection, term: Term, **changes: Any) -> None:
    connection.execute(
        update(controller).where(controller.c.name == term.controller).values(**changes)
    )


class AutoscalerControl(Part):
    """Autoscalers and their decisions. See `Control` for what all methods raise."""

    def journal(self) -> AutoscaleJournal:
        """Return the journal in which a controller keeps its term and its decisions."""
        return AutoscaleJournal(self._database.engine)

    def all(self) -> list[ControllerView]:
        """Return all controllers, ascending by name."""
        with reading(self._database.engine) as connection:
            now = now_us(connection)
            rows = connection.execute(select(controller).order_by(controller.c.name)).all()
        return [
            ControllerView(
                row.name,
                row.owner if row.expires_at_us > now else None,
                row.epoch,
                row.looked_at_us,
                row.last,
                row.up_us,
                row.down_us,
                row.seq,
            )
            for row in rows
        ]

    def decisions(
        self, *, name: str | None = None, limit: int = 50, changes: bool = False
    ) -> list[DecisionView]:
        """Read up to `limit` decisions, the latest first.

        Args:
            name: read the decisions of this controller only.
            changes: read only decisions that were to change the size.

        Raises:
            ConfigError: the limit is below 1.
        """
        if limit < 1:
            raise ConfigError(f"a limit must be at least 1, not {limit}")
        found = (
            select(decision).order_by(decision.c.at_us.desc(), decision.c.seq.desc()).limit(limit)
        )
        if name is not None:
            found = found.where(decision.c.controller == name)
        if changes:
            found = found.where(decision.c.from_size != decision.c.to_size)
        with reading(self._database.engine) as connection:
            rows = connection.execute(found).all()
        return [DecisionView(**{**row._mapping, "inputs": object_of(row.inputs)}) for row in rows]
