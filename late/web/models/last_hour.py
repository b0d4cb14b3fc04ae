"""The charts of the overview: the last hour by minutes, and what has changed in it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from late.control.audit import named
from late.control.status.changes import Change
from late.web.formats import age
from late.web.models.history import HOUR_US, MINUTE_US, Key, Slot, longest

NAMED = 3
"""Workers of one line that are named."""
SHOWN_MAX = 200
"""Characters of one value of a change."""


Row = tuple[int, int | None, int | None, int | None, float | None]
"""The second at which a minute begins; arrived, ended, failed, and the longest wait in seconds.
Without figures it is a gap."""


class Mark(msgspec.Struct, frozen=True):
    """One line of what has changed, which the charts mark too."""

    at_us: int
    kind: str
    text: str
    href: str = ""


def labels(found: Sequence[Row]) -> dict[str, str]:
    """Return each chart in words, for who does not see it."""
    known = [row for row in found if row[1] is not None]
    if not known:
        return dict.fromkeys(("flow", "failed", "wait"), "The journal is being read.")
    arrived, ended, failed = (sum(row[n] or 0 for row in known) for n in (1, 2, 3))
    longest = max((row[4] for row in known if row[4] is not None), default=None)
    return {
        "flow": f"{arrived:,} arrived and {ended:,} ended in {len(known)} min",
        "failed": f"{failed:,} in {len(known)} min",
        "wait": "nothing waited" if longest is None else f"{age(longest)} at most",
    }


def columns(found: Sequence[Row]) -> dict[str, list[tuple[float | None, ...]]]:
    """Return the points of each chart, all on one axis."""
    return {
        "flow": [(at, arrived, ended) for at, arrived, ended, _, _ in found],
        "failed": [(at, failed) for at, _, _, failed, _ in found],
        "wait": [(at, waited) for at, _, _, _, waited in found],
    }


def rows(
    minutes: Mapping[int, Mapping[Key, Slot]],
    *,
    now_us: int,
    known: tuple[int, int],
    gaps: Sequence[tuple[int, int]] = (),
    oldest_s: float | None,
    sees: Callable[[str], bool],
) -> tuple[Row, ...]:
    """Make a row of each of the last 60 whole minutes.

    Args:
        known: the times from which and up to which the journal was read; what is not within them is
            a gap.
        gaps: times within them that were left out.
        oldest_s: the age of the oldest task that waits now. It was waiting in the minutes before
            too, so a queue in which nothing starts is no gap but a line that rises.
        sees: whether the caller may see a queue.
    """
    end_us = now_us // MINUTE_US * MINUTE_US
    found: list[Row] = []
    for at_us in range(end_us - HOUR_US, end_us, MINUTE_US):
        left_out = any(begin <= at_us < end for begin, end in gaps)
        if left_out or at_us < known[0] or at_us + MINUTE_US > known[1]:
            found.append((at_us // 1_000_000, None, None, None, None))
            continue
        of = [each for key, each in minutes.get(at_us, {}).items() if sees(key[1])]
        waits = [wait for each in of if (wait := longest(each.waiting)) is not None]
        if oldest_s is not None and (was_s := oldest_s - (now_us - at_us - MINUTE_US) / 1e6) > 0:
            waits.append(was_s)
        found.append((
            at_us // 1_000_000, sum(each.arrived for each in of), sum(each.ended for each in of),
            sum(each.failed for each in of), round(max(waits), 3) if waits else None,
        ))  # fmt: skip
    return tuple(found)


def marks(
    changes: Iterable[Change], *, sees_all: bool, sees: Callable[[str], bool]
) -> tuple[Mark, ...]:
    """Make the lines of what has changed, the latest first; workers of one minute are one line.

    Args:
        sees_all: the caller may see what is not of one queue.
        sees: whether the caller may see a queue.
    """
    found: list[Mark] = []
    workers: dict[tuple[str, int], list[Change]] = {}
    for each in _joined(changes):
        if each.kind != "change":
            workers.setdefault((each.kind, each.at_us // MINUTE_US), []).append(each)
        elif sees_all or (each.subject.startswith("queue:") and sees(each.subject[6:])):
            found.append(_act(each))
    found += [_of_workers(kind, some, sees_all) for (kind, _), some in workers.items()]
    return tuple(sorted(found, key=lambda mark: -mark.at_us))


def _joined(changes: Iterable[Change]) -> list[Change]:
    """Put the parts of one command together, the latest first: each few hundred of its tasks have a
    row of the audit."""
    found: list[Change] = []
    parts: dict[tuple[str, str, str, bytes], int] = {}
    for each in changes:
        count, ids, others = _command(each.after)
        if count is None:
            found.append(each)
            continue
        key = (each.what, each.subject, each.by, msgspec.json.encode(others, order="sorted"))
        place = parts.get(key)
        if place is not None and found[place].at_us - each.at_us < MINUTE_US:
            late = _fields(found[place].after)
            count, ids = count + late["count"], [*ids, *late.get("ids", ())]
        else:
            place = parts[key] = len(found)
            found.append(each)
        whole = {"count": count, **others, **({"ids": ids} if ids else {})}
        found[place] = msgspec.structs.replace(each, after=msgspec.json.encode(whole).decode())
    return found


def _command(after: str | None) -> tuple[int | None, list[Any], dict[str, Any]]:
    """Return the count of a command, the ids that were given, and what else was; None if the row is
    of no command to tasks."""
    fields = dict(_fields(after))
    count, ids, which = fields.pop("count", None), fields.pop("ids", []), fields.get("filter")
    if not isinstance(count, int) or not isinstance(ids, list):
        return None, [], fields
    if isinstance(which, dict) and isinstance(which.get("task_ids"), list):
        ids = which["task_ids"]
        fields["filter"] = {name: value for name, value in which.items() if name != "task_ids"}
    return count, ids, fields


def _of_workers(kind: str, some: Sequence[Change], with_address: bool) -> Mark:
    names = sorted(
        f"{each.subject} at {each.by}" if with_address and each.by else each.subject
        for each in some
    )
    named = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" * (len(names) > NAMED))
    word = "joined" if kind == "join" else "died"
    noun = "Worker" if len(names) == 1 else f"{len(names)} workers"
    versions = {each.what.partition("+")[0] for each in some}  # without what it can do
    text = f"{noun} {word}: {named} (version {', '.join(sorted(versions))})"
    return Mark(min(each.at_us for each in some), kind, text, "workers")


def _act(change: Change) -> Mark:
    kind, _, name = change.subject.partition(":")
    screens = {"queue": "queues", "target": "targets", "group": "groups"}
    href = f"{screens[kind]}/{quote(name, safe='')}" if kind in screens and name else ""
    differs = difference(change.before, change.after)
    text = f"{change.what} {name or kind}{': ' if differs else ''}{differs}, by {change.by}"
    return Mark(change.at_us, "change", text, href)


def difference(before: str | None, after: str | None) -> str:
    """Describe what differs between two JSON objects, such as `rate 50 → 20`; without a former one
    the new one, such as `rate 20`; nothing if they are none."""
    old, new = _fields(before), _fields(after)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if not old:
        return ", ".join(f"{name} {_shown(new[name])}" for name in names)
    return ", ".join(f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}" for name in names)


def _fields(text: str | None) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    if isinstance(value, list) and len(value) > NAMED:
        return named(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # A filter may have some hundred ids: the audit has them all.
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
