"""The consumers of a pulled queue that could not do an attempt. Pure.

A consumer that cannot do a task mostly answers at once, and so is the first to ask for the next
one. It would get the same task again and again, and those who can do it would not.
"""

from __future__ import annotations

from late.handler.classify import Verdict
from late.model.task import Attempt, TaskId

REFUSALS_MAX = 10_000
_Key = tuple[str, TaskId]


def known_as(consumer: str) -> str | None:
    """Return the name that a consumer gave itself (`CALLER/NAME`, and `~` with a number for one
    request); None if it gave none, as many may have the name of its caller."""
    name = consumer.partition("~")[0]
    return name if "/" in name else None


class Refusals:
    """The consumers that could not do an attempt: it is not offered to them again for a while."""

    def __init__(self) -> None:
        self._found: dict[_Key, dict[str, tuple[float, Verdict]]] = {}

    def add(self, attempt: Attempt, consumer: str, verdict: Verdict, until: float) -> None:
        """Note it, until a monotonic time. Of many attempts the last ones are remembered."""
        key = attempt.group, attempt.record.task_id
        found = self._found.pop(key, {})
        self._found[key] = found | {consumer: (until, verdict)}
        if len(self._found) > REFUSALS_MAX:
            del self._found[next(iter(self._found))]

    def of(self, attempt: Attempt, now: float) -> dict[str, Verdict]:
        """Return who refused it and why, the last one last."""
        if not self._found:
            return {}  # the way of nearly all
        found = self._found.get((attempt.group, attempt.record.task_id), {})
        return {name: verdict for name, (until, verdict) in found.items() if now < until}

    def forget(self, attempt: Attempt) -> None:
        """Forget an attempt that has ended."""
        self._found.pop((attempt.group, attempt.record.task_id), None)
