"""Decides what follows when a child process has ended. Pure, except for the random source.

| the child | then |
|---|---|
| had been ready | the next one starts at once |
| was never ready | the next one starts after a wait, exponential with full jitter |
| refused its settings (exit code 2), and none was ever ready | give up: the next one would too |
| was one of many in a row of which none got ready, and no other is | give up: a crash loop |

One count serves all children: they run the same code, and one that gets ready ends the loop.
Children that work are never given up because another one fails, such as after a bad deploy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from late.model.backoff import Backoff

if TYPE_CHECKING:
    import random

FAILURES_MAX = 5
"""The parent gives up after so many failed starts in a row for each child that it has."""
WAIT_MIN_S = 0.5
WAIT_MAX_S = 15.0
PATIENT_WAITS_S = (4.0, 60.0)
"""The shortest and the longest bound of a wait in development, where each failure shows a
traceback."""
REFUSED = 2
"""The exit code of a program whose command or settings are wrong."""


class Restarts:
    """The count of starts that came to nothing.

    Args:
        children: how many there are.
        patient: never give up, and wait for longer: somebody is about to mend the code.
    """

    def __init__(self, children: int, rng: random.Random, *, patient: bool = False) -> None:
        self._patient = patient
        self._most = FAILURES_MAX * children
        waits = PATIENT_WAITS_S if patient else (WAIT_MIN_S, WAIT_MAX_S)
        self._backoff = Backoff(rng, base_s=waits[0], cap_s=waits[1])
        self._any_ready = False
        self.count = 0
        """Children that were started in place of another one."""

    def ready(self) -> None:
        """Note that a child has become ready."""
        self._any_ready = True
        self._backoff.reset()

    def after(self, code: int, *, was_ready: bool, others_ready: bool) -> float | None:
        """Return the seconds until the next start of a child that ended with `code`, or None to
        give up.

        Args:
            code: negative for the signal that ended it.
            was_ready: it had been ready.
            others_ready: at least one other child is ready now.
        """
        wait_s = 0.0 if was_ready else round(self._backoff.next_s(), 2)
        hopeless = code == REFUSED and not self._any_ready
        hopeless |= self._backoff.failures >= self._most
        if hopeless and not (was_ready or others_ready or self._patient):
            return None
        self.count += 1
        return wait_s
