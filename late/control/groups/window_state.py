"""The state of a group's last replay of a window, and its cancel."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, Engine, select, update

from late.control import audit
from late.control.groups import groups
from late.control.groups.groups import WINDOW_KEY
from late.control.groups.window import Progress
from late.control.sql.rows import now_us
from late.errors import Conflict
from late.model.replay import WindowState
from late.schema.engine import reading, write
from late.schema.tables import meta


def window_state(engine: Engine, name: str) -> WindowState | None:
    """Return the last replay of a window of a group; None if there was none."""
    with reading(engine) as connection:
        kept = _kept(connection, name)
    return None if kept is None else _view(name, kept)


def cancel_window(engine: Engine, name: str) -> WindowState:
    """End the replay of a window that is under way: nothing more is put back, by nobody.

    What was put back already runs as it falls due, within seconds.

    Raises:
        ConfigError: there is no such group.
        Conflict: no replay of a window is under way.
    """

    def work(connection: Connection) -> WindowState:
        groups.known(connection, name)  # Locked: no slice is copied at the same time.
        kept = _kept(connection, name)
        if kept is None or kept.finished_us is not None:
            raise Conflict(f"group {name!r} has no replay of a window under way")
        kept = msgspec.structs.replace(kept, finished_us=now_us(connection), cancelled=True)
        value = msgspec.json.encode(kept).decode()
        connection.execute(update(meta).where(meta.c.key == WINDOW_KEY + name).values(value=value))
        audit.record(
            connection, action="group.replay_cancelled", subject=f"group:{name}",
            after={"from_us": kept.since_us, "until_us": kept.until_us, "copied": kept.copied},
        )  # fmt: skip
        return _view(name, kept)

    return write(engine, work)


def under_way(facts: Mapping[str, str]) -> dict[str, WindowState]:
    """Return the replays of windows that have not ended, from the rows of `late_meta`, by group.
    Pure."""
    found = {}
    for key, text in facts.items():
        if key.startswith(WINDOW_KEY):
            kept = msgspec.json.decode(text, type=Progress)
            if kept.finished_us is None:
                name = key.removeprefix(WINDOW_KEY)
                found[name] = _view(name, kept)
    return found


def _kept(connection: Connection, name: str) -> Progress | None:
    found = connection.execute(select(meta.c.value).where(meta.c.key == WINDOW_KEY + name))
    text = found.scalar()
    return None if text is None else msgspec.json.decode(text, type=Progress)


def _view(name: str, kept: Progress) -> WindowState:
    return WindowState(
        name, kept.since_us, kept.until_us, kept.rate, kept.copied, kept.due_us, kept.finished_us,
        kept.cancelled,
    )  # fmt: skip
