"""`rate_limit` of a task: a queue of its own, with a rate. Pure."""

from __future__ import annotations

import re

from late.celery.exceptions import NotSupported
from late.model.validation import is_name

_FORM = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600}
RATE_MIN = 0.001
"""The lowest rate of a queue, in tasks per second."""


def rate_of(task: str, given: object) -> float | None:
    """Return tasks per second for `10`, `"10/s"`, `"10/m"` or `"10/h"`; None for no limit.

    Raises:
        NotSupported: it has another form, or is below one task in 1,000 seconds.
    """
    if given is None:
        return None
    match = _FORM.match(str(given))
    if match is None:
        raise NotSupported(
            f'{task}: rate_limit is a number, "10/s", "10/m" or "10/h", got {given!r:.40}'
        )
    rate = float(match[1]) / _SECONDS[match[2] or "s"]
    if rate == 0:
        return None
    if rate < RATE_MIN:
        raise NotSupported(f"{task}: rate_limit {given} is below one task in 1,000 s")
    return rate


def queue_with(task: str, queue: str) -> str:
    """Return the queue of a task with a rate, which would be in `queue` without one.

    Raises:
        NotSupported: the two names make none.
    """
    name = f"{queue}.{task}"
    if not is_name(name):
        raise NotSupported(
            f"{task}: rate_limit needs a queue of its own, and {name!r:.140} is no name"
        )
    return name
