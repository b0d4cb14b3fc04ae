"""Consumer groups: create, pause and remove them. `reset` and `wait` are modules of their own.

A group is a row of `late_group` and, for each shard, a lease and a first settlement with the place
where it begins. It adds no rows to the log, but the log keeps each row until the group has settled
it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Row,
    Table,
    delete,
    exc,
    func,
    insert,
    literal_column,
    select,
    update,
)

from late.control import audit
from late.control.sql import positions
from late.control.sql.last_settlement import journals
from late.control.sql.rows import locking, now_us
from late.control.sql.shards import survey
from late.errors import ConfigError, Conflict, TransactionAborted
from late.model.group_settings import KEY as SETTINGS_KEY
from late.model.task import CONTROL_QUEUE, DEFAULT_GROUP, Reads
from late.model.validation import NAME_RULE, is_name
from late.schema.engine import reading, write
from late.schema.tables import NOW_US, dead, group, lease, meta, settlement, timer, worker
from late.store.common.groups import PAUSED, is_shadow

_GONE = "group_gone/"
SHADOW_KEY = "shadow/"
"""The beginning of the keys in `late_meta` under which shadows are described."""


REPLAY_KEY = "replay/"
"""The beginning of the keys in `late_meta` under which the rates of replays are kept."""
WINDOW_KEY = "window/"
"""The beginning of the keys in `late_meta` under which replays of windows note their progress."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint that an operator writes into the journal of one shard."""

    shard_id: int
    seq: int
    epoch: int
    cursor: str
    open: str = "[]"
    suspects: str | None = None


class _Gone(msgspec.Struct, frozen=True):
    """The last numbers of a deleted group. A later group of the same name begins above them.

    Otherwise a former owner that wakes up could still write its next settlement.
    """

    seq: int
    epoch: int


def create(
    engine: Engine,
    name: str,
    *,
    queues: Iterable[str] | None,
    start: str | int | None,
    register: Callable[[Connection, int], Mapping[str, Any]] = lambda connection, now: {},
) -> None:
    """Register a group that begins at `start` in every shard.

    Args:
        queues: the queues that it reads; all when None. They never change, because skipped records
            count as settled.
        start: `beginning`, `now` or a time in microseconds. None only for a group that was used
            without being registered; it continues from its present place.
        register: returns further columns of its row, in the same transaction.

    Raises:
        ConfigError: the name is not valid or is taken, there is no queue, or the start is not
            valid.
    """
    chosen = _queues(queues)
    if not is_name(name):
        raise ConfigError(f"not a name of a group: {name[:64]!r} ({NAME_RULE})")
    # The head is read first, so every later commit belongs to the group.
    cursor = positions.head(engine) if start == positions.NOW else ""

    def work(connection: Connection) -> None:
        now = now_us(connection)
        if row_of(connection, name) is not None:
            raise Conflict(f"there is a group {name!r} already")
        owned = connection.execute(
            select(lease.c.shard_id).where(lease.c.consumer_group == name).limit(1)
        ).first()
        if owned is not None and start is not None:
            raise Conflict(
                f"group {name!r} has a journal: create it without a start, then reset it"
            )
        if owned is None and start is None:
            raise ConfigError("say where it starts: beginning, now, or a time")
        place = None if start is None else positions.checked(start, now)
        connection.execute(
            insert(group).values(
                name=name,
                created_at_us=now,
                queues=None if chosen is None else msgspec.json.encode(chosen).decode(),
                from_us=None if place is None else positions.from_us(place),
                **register(connection, now),
            )
        )
        if place is not None:
            _begin(connection, name, place, cursor)
        after = {"queues": chosen, "start": start}
        audit.record(connection, action="group.create", subject=f"group:{name}", after=after)

    once(engine, work)


def _begin(connection: Connection, name: str, place: str | int, cursor: str) -> None:
    text = connection.execute(select(meta.c.value).where(meta.c.key == _GONE + name)).scalar()
    gone = msgspec.json.decode(text, type=_Gone) if text else _Gone(0, 0)
    known = list(connection.execute(select(group.c.name)).scalars())
    every = survey(connection).every
    where = dict.fromkeys(every, cursor)
    if isinstance(place, int):
        where = positions.before(connection, every, place, known)
    for shard_id in every:
        checkpoint = Checkpoint(shard_id, gone.seq + 1, gone.epoch + 1, where[shard_id])
        write_checkpoint(connection, name, checkpoint, by="create", leased=False)


def pause(engine: Engine, name: str, *, paused: bool) -> None:
    """Pause or resume a group. Its workers release or take its shards within seconds.

    Raises:
        ConfigError: there is no such group.
    """

    def work(connection: Connection) -> None:
        row = known(connection, name)
        if bool(row.paused & PAUSED) != paused:
            values = {"paused": row.paused & ~PAUSED | paused * PAUSED}
            connection.execute(update(group).where(group.c.name == name).values(**values))
            action = "group.pause" if paused else "group.resume"
            audit.record(connection, action=action, subject=f"group:{name}")

    write(engine, work)


def remove(engine: Engine, name: str, *, served: bool = False) -> None:
    """Remove a group with its journals, timers and dead letters. None of its tasks runs again.

    Args:
        served: remove it also if live workers serve it. They find its shards gone.

    Raises:
        ConfigError: there is no such group, it is the default group, or live workers serve it.
    """

    def work(connection: Connection) -> None:
        if name == DEFAULT_GROUP:
            raise Conflict("the default group stays: schedules and unique keys live by it")
        known(connection, name)
        live = 0 if served else serving(connection).get(name, 0)
        if live:
            raise Conflict(f"{live} live workers serve group {name!r}: stop them first")
        high = [0, 0]
        for key, journal in journals(connection).items():
            if key[0] == name:
                high = [max(high[0], journal.seq), max(high[1], journal.epoch)]
        counts = {t.name: _count(connection, t, name) for t in (timer, dead)}
        _forget(connection, name, _Gone(*high))
        audit.record(
            connection, action="group.delete", subject=f"group:{name}",
            before={"timers": counts["late_timer"], "dead_letters": counts["late_dead"]},
        )  # fmt: skip

    write(engine, work)


def _count(connection: Connection, table: Table, name: str) -> int:
    count = select(func.count()).select_from(table).where(table.c.consumer_group == name)
    return int(connection.execute(count).scalar_one())


def _forget(connection: Connection, name: str, gone: _Gone) -> None:
    for table in (timer, dead, settlement, lease):
        connection.execute(delete(table).where(table.c.consumer_group == name))
    connection.execute(delete(group).where(group.c.name == name))
    key = _GONE + name
    connection.execute(
        delete(meta).where(
            meta.c.key.in_(
                [key, *(of + name for of in (SHADOW_KEY, REPLAY_KEY, WINDOW_KEY, SETTINGS_KEY))]
            )
        )
    )
    value = msgspec.json.encode(gone).decode()
    connection.execute(insert(meta).values(key=key, value=value))


def check(engine: Engine, names: Iterable[str]) -> None:
    """Refuse names of groups that are not registered; workers call this.

    Raises:
        ConfigError: one of them is not registered.
    """
    with reading(engine) as connection:
        found = set(connection.execute(select(group.c.name)).scalars())
        for name in sorted(set(names) - found):
            raise ConfigError(unknown(name, found))


# --- what the parts share ------------------------------------------------------------------------


def once(engine: Engine, work: Any) -> None:
    """Call `write`, and repeat the work if another transaction has just taken its key."""

    def repeated(connection: Connection) -> None:
        try:
            work(connection)
        except exc.IntegrityError as error:
            raise TransactionAborted("an owner has settled at the same moment") from error

    write(engine, repeated)


def row_of(connection: Connection, name: str, *, lock: bool = True) -> Row[Any] | None:
    """Read the row of a group. With `lock`, lock it."""
    statement = select(group).where(group.c.name == name)
    return connection.execute(locking(connection, statement) if lock else statement).first()


def known(connection: Connection, name: str, *, lock: bool = True) -> Row[Any]:
    """Read the row of a group, as `row_of` does.

    Raises:
        ConfigError: there is no such group.
    """
    row = row_of(connection, name, lock=lock)
    if row is None:
        raise ConfigError(unknown(name, set(connection.execute(select(group.c.name)).scalars())))
    return row


def unknown(name: str, known: set[str]) -> str:
    """Return the message about a group that is not registered."""
    return (
        f"no consumer group {name[:128]!r}; known: {', '.join(sorted(known))}. "
        "Make one: late group create NAME --start-from beginning|now|TIME"
    )


def shown(reads: Reads) -> tuple[str, ...] | None:
    """Return the queues that a group reads, without that of commands; None for all."""
    return None if reads.queues is None else tuple(sorted(reads.queues - {CONTROL_QUEUE}))


def serving(connection: Connection) -> dict[str, int]:
    """Count the live workers of each group."""
    found: dict[str, int] = {}
    live = select(worker.c.consumer_groups).where(worker.c.expires_at_us > now_us(connection))
    for text in connection.execute(live).scalars():
        for name in msgspec.json.decode(text, type=list[str]):
            found[name] = found.get(name, 0) + 1
    return found


def served(engine: Engine) -> frozenset[str]:
    """Return the groups that have a live worker, without shadows."""
    with reading(engine) as connection:
        rows = connection.execute(select(group.c.name, group.c.paused))
        shadows = {row.name for row in rows if is_shadow(row.paused)}
        return frozenset(serving(connection)) - shadows


def write_checkpoint(
    connection: Connection, name: str, checkpoint: Checkpoint, *, by: str, leased: bool
) -> None:
    """Free a shard, which then begins at this checkpoint under a new epoch.

    The settlement that this writes fences the present owner.

    Args:
        leased: True if the lease has a row.

    Raises:
        sqlalchemy.exc.IntegrityError: an owner has settled at the same time.
    """
    here = (lease.c.consumer_group == name, lease.c.shard_id == checkpoint.shard_id)
    held: dict[str, Any] = {"owner": None, "epoch": checkpoint.epoch}
    if leased:
        connection.execute(update(lease).where(*here).values(**held))
    else:
        key = {"consumer_group": name, "shard_id": checkpoint.shard_id}
        connection.execute(insert(lease).values(**key, **held))
    connection.execute(
        insert(settlement).values(
            consumer_group=name,
            shard_id=checkpoint.shard_id,
            seq=checkpoint.seq,
            settlement_id=uuid.uuid4().hex,
            epoch=checkpoint.epoch,
            owner=by,
            cursor=checkpoint.cursor,
            open=checkpoint.open,
            settled_at_us=literal_column(NOW_US[connection.dialect.name]),
            suspects=checkpoint.suspects,
        )
    )


def _queues(queues: Iterable[str] | None) -> list[str] | None:
    if queues is None:
        return None
    chosen = sorted(set(queues))
    bad = next((queue for queue in chosen if not is_name(queue)), None)
    if bad is not None:
        raise ConfigError(f"not a name of a queue: {bad[:64]!r} ({NAME_RULE})")
    if not chosen:
        raise ConfigError("a group that reads no queue does nothing")
    return chosen
