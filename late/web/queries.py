"""Values of a page's query, checked against the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from late.control.findings.workers import unheard
from late.errors import ConfigError
from late.web.snapshot import Snapshot


def seen_at(seen: Snapshot) -> dict[str, Any]:
    return {
        "seen_us": seen.status.now_us,
        "pause_of": seen.status.pause,
        "partial": seen.partial,
        "unheard": unheard(seen),
    }


def group_asked(request: Request, seen: Snapshot) -> str:
    """The group that is asked for, if any.

    Raises:
        ConfigError: there is no such group. An empty list would suggest that all is well.
    """
    name = request.query_params.get("group", "")[:128]
    if name and name not in groups_of(seen):
        raise ConfigError(f"no consumer group {name!r}")
    return name


def groups_of(seen: Snapshot) -> list[str]:
    """The groups by name; of a snapshot of some queues, those that have tasks of these."""
    known = [each.name for each in seen.groups]
    return known or sorted({each.group for each in seen.status.queues})


def number_asked(request: Request, name: str, default: int) -> int:
    """A whole number of the query; `default` if it is not one."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default


def whole_of(fields: Mapping[str, str], name: str) -> int | None:
    """A whole number of a form; None if it is left empty.

    Raises:
        ConfigError: it is none.
    """
    text = fields.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ConfigError(f"{name} is a whole number, got {text[:40]!r}")
    return int(text)


def real_of(fields: Mapping[str, str], name: str) -> float | None:
    """A number of a form; None if it is left empty.

    Raises:
        ConfigError: it is none.
    """
    text = fields.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError(f"{name} is a number, got {text[:40]!r}") from None
