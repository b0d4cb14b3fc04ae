"""Read the conflicts that workers and services have logged as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from late.control.analyze.report import PROCESS, Wait, view_of


class _Line(msgspec.Struct):
    event: str = ""
    time: str = ""
    kind: str = ""
    tag: str = ""
    count: int = 1
    lost_s: float = 0.0
    attempt: int = 1
    tables: str = ""
    key: str = ""
    other: str = ""
    process: str = ""
    statement: str = ""
    other_statement: str = ""
    other_idle: bool = False


class Logged(msgspec.Struct):
    """The conflicts of one log, and the time from the first to the last."""

    waits: list[Wait]
    for_s: float


def read(lines: Iterable[str], tags_of: Mapping[int, str] | None = None) -> Logged:
    """Return the conflicts in a log of `--log-json`. Other lines are passed over, cut ones too.

    Args:
        tags_of: tags by server process, for conflicts that name the other one by its process.
    """
    known = tags_of or {}
    found, times = [], []
    for line in lines:
        if '"conflict"' not in line:
            continue
        try:
            # Whatever collects logs may have put something before the line.
            each = msgspec.json.decode(line[line.index("{") :], type=_Line)
        except (msgspec.DecodeError, ValueError):
            continue
        if each.event != "conflict":
            continue
        if (moment := _moment(each.time)) is not None:
            times.append(moment)
        found.append(
            Wait(
                view=view_of(each.kind),
                kind=each.kind,
                tag=each.tag,
                other=each.other or _named(each.process, known),
                place=each.key or each.tables,
                lost_s=each.lost_s,
                count=each.count,
                attempt=each.attempt,
                statement=each.statement,
                other_statement=each.other_statement,
                other_idle=each.other_idle,
            )
        )
    return Logged(found, max(times) - min(times) if times else 0.0)


def _named(process: str, tags_of: Mapping[int, str]) -> str:
    if not process.isascii() or not process.isdigit():
        return ""
    return tags_of.get(int(process), f"{PROCESS}{process}")


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
