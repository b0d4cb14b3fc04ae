"""A look at a deployment without its shadows, for what judges: alerts and findings. Pure.

A shadow may fail, and may be behind. Whoever tries it compares it by `late group compare`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from late.control.status.snapshot import Snapshot
from late.control.views import Status

V = TypeVar("V")


def of_status(status: Status, shadows: Collection[str]) -> Status:
    """Return the status without what belongs to these groups."""
    if not shadows:
        return status
    parts = ("queues", "shards", "unhandled", "limited", "limited_keys", "suspects", "objectives")
    kept = {
        name: tuple(each for each in getattr(status, name) if each.group not in shadows)
        for name in parts
    }
    groups = tuple(each for each in status.groups if each.name not in shadows)
    return msgspec.structs.replace(status, groups=groups, **kept)


def of_look(
    status: Status,
    signals: Mapping[str, V],
    paces: Mapping[tuple[str, str], V],
    shadows: Collection[str],
) -> tuple[Status, dict[str, V], dict[tuple[str, str], V]]:
    """Return status and signals without what belongs to these groups."""
    return (
        of_status(status, shadows),
        {name: each for name, each in signals.items() if name not in shadows},
        {key: each for key, each in paces.items() if key[0] not in shadows},
    )


def of_snapshot(seen: Snapshot) -> Snapshot:
    """Return the look without what belongs to shadows."""
    shadows = {each.name for each in seen.groups if each.shadow_of is not None}
    if not shadows:
        return seen
    status, signals, paces = of_look(seen.status, seen.signals, seen.paces, shadows)
    groups = tuple(each for each in seen.groups if each.name not in shadows)
    return msgspec.structs.replace(seen, status=status, signals=signals, paces=paces, groups=groups)
