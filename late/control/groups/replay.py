"""The rates of replays. They are kept in `late_meta`, beside the row of the group.

A rate belongs to one reset. Each reset writes the rate anew or removes it, in its transaction.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, Engine, delete, insert, select

from late.control.groups.groups import REPLAY_KEY
from late.errors import ConfigError
from late.model.replay import Replay
from late.model.shadow import RATE_MAX, RATE_MIN
from late.schema.engine import reading
from late.schema.tables import group, meta


def check(rate: float | None) -> None:
    """Refuse a rate that is out of bounds.

    Raises:
        ConfigError: it is out of bounds.
    """
    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(f"rate {rate:g}: from {RATE_MIN:g} to {RATE_MAX:g}")


def put(connection: Connection, name: str, rate: float | None) -> None:
    """Write the rate of the group's new replay, or remove that of the last one."""
    key = REPLAY_KEY + name
    connection.execute(delete(meta).where(meta.c.key == key))
    if rate is not None:
        connection.execute(insert(meta).values(key=key, value=msgspec.json.encode(rate).decode()))


def all_of(engine: Engine) -> dict[str, Replay]:
    """Read the last replay of each group that has one, by name."""
    end = REPLAY_KEY[:-1] + chr(ord(REPLAY_KEY[-1]) + 1)
    kept = select(meta.c.key, meta.c.value).where(meta.c.key >= REPLAY_KEY, meta.c.key < end)
    rows = select(group.c.name, group.c.replay_us).where(group.c.replay_us > 0)
    with reading(engine) as connection:
        reset = {row.name: row.replay_us for row in connection.execute(rows)}
        rates = {
            key.removeprefix(REPLAY_KEY): msgspec.json.decode(value, type=float)
            for key, value in (connection.execute(kept) if reset else ())
        }
    return {name: Replay(at_us, rates.get(name)) for name, at_us in reset.items()}
