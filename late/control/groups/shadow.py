"""Shadows: consumer groups that try code on real tasks, without effects.

A shadow is a group whose row has the bit `SHADOW` in `paused`, so that an older version takes it
for a paused one. What else is known of it is in `late_meta`. It is forgotten when its time is over:
until then the log keeps tasks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, delete, insert, select, update

from late.control.groups import groups
from late.control.sql import positions
from late.control.sql.rows import now_us
from late.errors import ConfigError, Conflict
from late.model.shadow import (
    KEEP_MAX_S,
    KEEP_S,
    RATE_MAX,
    RATE_MIN,
    SPEED_MAX,
    SPEED_MIN,
    Shadow,
)
from late.schema.engine import reading, write
from late.schema.tables import group, meta
from late.store.common.groups import SHADOW, is_shadow

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Shadow).decode


def create(
    engine: Engine,
    name: str,
    *,
    of: str,
    start: str | int = positions.NOW,
    queues: Iterable[str] | None = None,
    rate: float | None = None,
    speed: float | None = None,
    keep_s: float = KEEP_S,
) -> None:
    """Register a shadow of the group `of`.

    Args:
        start: as for a group: `beginning`, `now`, or a time in microseconds.
        queues: those that it reads; by default those of the other group.
        rate: tasks that it begins in a second, at most.
        speed: it takes tasks at so many times the pace at which they were created; only with a
            time as `start`.
        keep_s: it is forgotten so many seconds from now.

    Raises:
        ConfigError: a value is not valid, or there is no group `of`.
        Conflict: there is a group of this name, or `of` is a shadow.
    """
    _check("rate", rate, RATE_MIN, RATE_MAX)
    _check("speed", speed, SPEED_MIN, SPEED_MAX)
    if not 1.0 <= keep_s <= KEEP_MAX_S:
        days = KEEP_MAX_S / 86_400
        raise ConfigError(f"keep a shadow for {keep_s:.0f} s: from a second to {days:.0f} days")
    if speed is not None and not isinstance(start, int):
        raise ConfigError("a speed needs a time to start from: a pace counts from a moment")
    with reading(engine) as connection:
        real = groups.known(connection, of, lock=False)
        if is_shadow(real.paused):
            raise Conflict(f"group {of!r} is a shadow itself: name the real group")
        reads = positions.registered(connection, of)[of]
    chosen = queues
    if chosen is None and reads.queues is not None:
        chosen = groups.shown(reads)

    def register(connection: Connection, now: int) -> Mapping[str, Any]:
        since_us = start if isinstance(start, int) else 0 if start == positions.BEGINNING else now
        until_us = now + round(keep_s * 1_000_000)
        _put(connection, name, Shadow(of, until_us, since_us, rate, speed))
        return {"paused": SHADOW}

    groups.create(engine, name, queues=chosen, start=start, register=register)


def _check(what: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise ConfigError(f"{what} {value:g}: from {least:g} to {most:g}")


def begin(engine: Engine, names: Iterable[str]) -> dict[str, Shadow]:
    """Return those of the groups `names` that are shadows; their time counts from the first call.

    Raises:
        ConfigError: a group is not registered; or some of them are shadows, and others are not.
    """
    chosen = sorted(set(names))
    groups.check(engine, chosen)
    with reading(engine) as connection:
        found = {name: each for name, each in known_shadows(connection).items() if name in chosen}
        rows = connection.execute(select(group.c.name, group.c.paused))
        marked = [name for name, paused in rows if name in chosen and is_shadow(paused)]
    if 0 < len(marked) < len(chosen):
        real = ", ".join(name for name in chosen if name not in marked)
        raise ConfigError(
            f"{', '.join(marked)} is a shadow and {real} is not: one worker serves shadows or real"
            " groups, start two"
        )
    if missing := [name for name in marked if name not in found]:
        raise ConfigError(
            f"the shadow {missing[0]!r} is not described: delete it, and make it anew"
        )
    if any(found[name].began_us is None for name in marked):
        return write(engine, _first(marked))
    return {name: found[name] for name in marked}


def _first(names: Iterable[str]) -> Callable[[Connection], dict[str, Shadow]]:
    """Return what notes that their first worker begins now, and returns them."""

    def work(connection: Connection) -> dict[str, Shadow]:
        now, found = now_us(connection), {}
        for name in names:
            groups.known(connection, name)
            shadow = known_shadows(connection)[name]
            if shadow.began_us is None:
                shadow = msgspec.structs.replace(shadow, began_us=now)
                _put(connection, name, shadow)
            found[name] = shadow
        return found

    return work


def known_shadows(connection: Connection) -> dict[str, Shadow]:
    """Read what is known of all shadows, by name."""
    begins = groups.SHADOW_KEY
    last = begins[:-1] + chr(ord(begins[-1]) + 1)
    rows = connection.execute(
        select(meta.c.key, meta.c.value).where(meta.c.key >= begins, meta.c.key < last)
    )
    return shadows_in({row.key: row.value for row in rows})


def shadows_in(facts: Mapping[str, str]) -> dict[str, Shadow]:
    """Return the shadows that are described in rows of `late_meta`, by name. Pure."""
    begins = groups.SHADOW_KEY
    return {k.removeprefix(begins): _decode(v) for k, v in facts.items() if k.startswith(begins)}


def names(engine: Engine) -> frozenset[str]:
    """Read the names of all shadows."""
    with reading(engine) as connection:
        return names_of(connection)


def names_of(connection: Connection) -> frozenset[str]:
    """Read the names of all shadows."""
    rows = connection.execute(select(group.c.name, group.c.paused).where(group.c.paused >= SHADOW))
    return frozenset(name for name, paused in rows if is_shadow(paused))


def of(engine: Engine, name: str) -> Shadow:
    """Read what is known of one shadow.

    Raises:
        ConfigError: there is no such group, or it is no shadow.
    """
    with reading(engine) as connection:
        if not is_shadow(groups.known(connection, name, lock=False).paused):
            raise ConfigError(f"group {name!r} is no shadow: make one with late group shadow")
        return known_shadows(connection)[name]


def end_old(engine: Engine) -> tuple[str, ...]:
    """Forget the shadows whose time is over, and return their names."""
    with reading(engine) as connection:
        now, shadows = now_us(connection), names_of(connection)
        if not shadows:
            return ()
        known = known_shadows(connection)
    over = sorted(n for n in shadows if n in known and known[n].until_us <= now)
    for name in over:
        groups.remove(engine, name, served=True)
    return tuple(over)


def _put(connection: Connection, name: str, shadow: Shadow) -> None:
    key, value = groups.SHADOW_KEY + name, _encode(shadow).decode()
    if connection.execute(update(meta).where(meta.c.key == key).values(value=value)).rowcount == 0:
        connection.execute(delete(meta).where(meta.c.key == key))
        connection.execute(insert(meta).values(key=key, value=value))
