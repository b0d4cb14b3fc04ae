"""Shards with their owners, and groups: models of their screens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from late.control.views import Count, GroupView, ShardStatus
from late.errors import ConfigError
from late.model.replay import WindowState
from late.web.snapshot import Snapshot

PAGE = 64
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ShardRow(msgspec.Struct, frozen=True):
    """One shard in one group."""

    status: ShardStatus
    level: Literal["bad", "warn", "ok"]


class Shards(msgspec.Struct, frozen=True):
    """One page of shards."""

    rows: tuple[ShardRow, ...]
    groups: tuple[str, ...]
    after: int | None
    """The last shard of this page, if there is a next page; None on the last one."""
    homeless: int
    """Shards of the group without a live owner, on all pages."""
    lanes: tuple[str, ...]
    """The lanes of the group's shards, on all pages."""


def shards(seen: Snapshot, *, group: str = "", after: int = -1, most: int = PAGE) -> Shards:
    """Make one page of shards behind shard `after`, of `group`, or else of the first group."""
    names = tuple(sorted({shard.group for shard in seen.status.shards}))
    chosen = group or (names[0] if names else "")
    paused = {each.name for each in seen.groups if each.state == "paused"}
    ours = [shard for shard in seen.status.shards if shard.group == chosen]
    behind = [shard for shard in ours if shard.shard_id > after]
    page = tuple(ShardRow(shard, _level(shard, chosen in paused)) for shard in behind[:most])
    return Shards(
        rows=page,
        groups=names,
        after=page[-1].status.shard_id if len(behind) > most else None,
        homeless=sum(not shard.owner_live for shard in ours),
        lanes=tuple(sorted({shard.lane for shard in ours})),
    )


class Vanished(msgspec.Struct, frozen=True):
    """A worker whose heartbeat has ended, and some of whose shards nobody has taken over."""

    worker_id: str
    groups: tuple[str, ...]
    shards: int


def vanished(seen: Snapshot) -> tuple[Vanished, ...]:
    """List workers that own shards and are not alive, those with the most shards first."""
    lost: dict[str, list[str]] = {}
    for shard in seen.status.shards:
        if shard.owner and not shard.owner_live:
            lost.setdefault(shard.owner, []).append(shard.group)
    found = [Vanished(name, tuple(sorted(set(of))), len(of)) for name, of in lost.items()]
    return tuple(sorted(found, key=lambda each: (-each.shards, each.worker_id)))


def _level(shard: ShardStatus, paused: bool) -> Literal["bad", "warn", "ok"]:
    if shard.owner_live or paused:
        return "ok"
    return "bad" if shard.lag.n or shard.in_flight else "warn"


def group_level(group: GroupView) -> Literal["bad", "warn", "ok"]:
    """The level of a group: bad, warn or ok."""
    if group.lagging and group.state != "paused" and group.shadow_of is None:
        return "bad"
    return "ok" if group.state == "working" else "warn"


def reset_to(place: str, moment: str) -> str | int:
    """Parse the place at which a group is to begin anew: a word or a moment.

    The form gives a moment in microseconds, or as a date and time with its zone.

    Raises:
        ConfigError: it is neither a known word nor a moment.
    """
    if place in ("beginning", "now"):
        return place
    if place == "moment" and moment.isascii() and moment.isdigit() and len(moment) < 19:
        return int(moment)
    if place == "moment":
        with suppress(ValueError, OverflowError):
            at = datetime.fromisoformat(moment)
            if at.tzinfo is not None:
                return (at - EPOCH) // timedelta(microseconds=1)
    raise ConfigError("begin at the beginning, now, or a moment such as 2026-05-01T12:00:00Z")


def moment(text: str, what: str) -> int:
    """Parse a time of a form, a date and time with its zone; in microseconds.

    Raises:
        ConfigError: it is none; the message has `what` it is for.
    """
    try:
        found = reset_to("moment", text.strip())
    except ConfigError:
        found = ""
    if isinstance(found, int):
        return found
    raise ConfigError(f"{what} takes a time such as 2026-05-01T12:00:00Z")


def mark_of(window: WindowState | None) -> str:
    """Return a text that is another one once another replay of a window has begun or ended."""
    return "" if window is None else f"{window.since_us}-{window.until_us}-{window.finished_us}"


def confirmed(name: str, typed: str) -> None:
    """Check that the name of the thing was typed, before an action that cannot be undone.

    Raises:
        ConfigError: something else was typed.
    """
    if typed != name:
        raise ConfigError(f"type {name!r} to confirm it: this cannot be undone")


def totals(rows: Sequence[tuple[Count, ...]]) -> tuple[Count, ...]:
    """Add up the columns of a preview over the shards."""
    return tuple(sum(column, start=Count()) for column in zip(*rows, strict=True))
