"""A task's attempts on one axis of time, as the page draws them. Pure.

What the store knows decides: with a history each attempt has its begin and its length; without one
a failed attempt is a mark at the time of its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from late.control.views import TaskInGroup, TaskView
from late.web.formats import age

Kind = Literal["waits", "runs", "done", "failed", "dead", "due"]
WIDTH = 1_000
"""The length of the axis, in the units of the drawing."""
LEAST = 6
"""An attempt is drawn no shorter: most take a thousandth of the time that the task waits."""
ATTEMPTS = 50
"""The latest attempts are drawn."""
_KINDS: dict[str, Kind] = {"dead": "dead", "died": "dead", "retried": "failed", "stalled": "failed"}


class Bar(msgspec.Struct, frozen=True):
    """One piece of the axis."""

    kind: Kind
    x: int
    width: int
    says: str


class Axis(msgspec.Struct, frozen=True):
    """The drawing of one task in one group."""

    begin_us: int
    end_us: int
    bars: tuple[Bar, ...]
    now: int | None
    """The place of the present moment; None if all is past."""
    says: str
    """The same in a sentence."""


class _Span(msgspec.Struct, frozen=True):
    kind: Kind
    begin_us: int
    end_us: int
    says: str


def axis(
    task: TaskView, group: TaskInGroup, now_us: int, began_us: int | None = None
) -> Axis | None:
    """Draw a task; None while there is nothing to draw.

    Args:
        began_us: the begin of the attempt that runs now, where a worker tells it.
    """
    attempts = _attempts(group)[-ATTEMPTS:]
    enqueued_us = task.created_at_us or task.made_at_us
    # Clocks differ: an attempt may seem to have begun before its task was enqueued.
    begin_us = min([enqueued_us, *(each.begin_us for each in attempts)])
    spans = list(_spans(group, attempts, begin_us, now_us, began_us))
    if not spans:
        return None
    end_us = max(each.end_us for each in spans)
    whole = max(1, end_us - begin_us)

    def place(us: int) -> int:
        return round(WIDTH * min(1.0, max(0.0, (us - begin_us) / whole)))

    bars = []
    for each in spans:
        x, end = place(each.begin_us), place(each.end_us)
        width = end - x
        if each.kind != "waits" and width < LEAST:
            x, width = min(x, WIDTH - LEAST), LEAST
        if width:
            bars.append(Bar(each.kind, x, width, each.says))
    # What waits is below: a short attempt is seen beside it.
    bars.sort(key=lambda bar: bar.kind not in ("waits", "due"))
    ran = [each for each in spans if each.kind in ("done", "failed", "dead")]
    said = f"{len(ran)} attempt{'' if len(ran) == 1 else 's'} in {age(whole / 1e6)}"
    now = place(now_us) if now_us < end_us else None
    return Axis(begin_us, end_us, tuple(bars), now, said + "; the list below has the same.")


def _spans(
    group: TaskInGroup, attempts: list[_Span], begin_us: int, now_us: int, began_us: int | None
) -> Iterator[_Span]:
    """Yield what waited and what ran, in order."""
    free_us = begin_us
    for each in attempts:
        if each.begin_us > free_us:
            yield _Span("waits", free_us, each.begin_us,
                        f"waited {age((each.begin_us - free_us) / 1e6)}")  # fmt: skip
        yield each
        free_us = max(free_us, each.end_us)
    if group.state == "parked" and group.due_at_us is not None and group.due_at_us > free_us:
        passed = min(max(now_us, free_us), group.due_at_us)
        yield _Span("waits", free_us, passed, f"waits for {age((passed - free_us) / 1e6)}")
        if group.due_at_us > passed:
            left = age((group.due_at_us - passed) / 1e6)
            yield _Span("due", passed, group.due_at_us, f"due in {left} ({group.reason})")
    elif group.state == "open" and began_us is not None and now_us > free_us:
        began_us = min(max(began_us, free_us), now_us)
        yield _Span("waits", free_us, began_us, f"waited {age((began_us - free_us) / 1e6)}")
        yield _Span("runs", began_us, now_us, f"runs for {age((now_us - began_us) / 1e6)}")
    elif group.state in ("waiting", "logged", "open", "parked") and now_us > free_us:
        word = "waits or runs" if group.state == "open" else "waits"
        yield _Span("waits", free_us, now_us, f"{word} for {age((now_us - free_us) / 1e6)}")


def _attempts(group: TaskInGroup) -> list[_Span]:
    """Return the attempts that are known, the earliest first."""
    found = [
        _Span(
            _KINDS.get(step.event, "done"),
            step.detail.started_at_us,
            step.detail.started_at_us + (step.detail.busy_us or 0),
            _says(step.detail.attempt, step.event, step.worker, step.detail.busy_us),
        )
        for step in group.history
        if step.detail.started_at_us is not None
    ]
    if not group.history:
        found = [
            _Span("failed", each.at_us, each.at_us, _says(each.attempt, "failed", each.worker))
            for each in group.errors
        ]
        if group.dead_at_us is not None and found:
            last = found.pop()
            found.append(msgspec.structs.replace(last, kind="dead"))
    return sorted(found, key=lambda each: each.begin_us)


def _says(attempt: int | None, event: str, worker: str, busy_us: int | None = None) -> str:
    number = "" if attempt is None else f"attempt {attempt} "
    ran = "" if busy_us is None else f", ran {age(busy_us / 1e6)}"
    return f"{number}{event.replace('_', ' ')}{ran}{f', on {worker}' if worker else ''}"
