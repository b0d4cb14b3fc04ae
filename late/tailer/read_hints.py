"""Decide when the tail looks next for a hint's sake; a hint changes nothing else. Pure.

A hint says that something was committed. It is believed at once, because it is nearly always true,
and it is not trusted, because anything may come by datagram. So:

- a hint asks for a look **now**, but looks that hints ask for begin a **spacing** apart at least,
  0.4 of the store's shortest poll, and each is followed by a pause as long as it took: on
  PostgreSQL and SQLite 500 a second, and half of the time, at most;
- a look that finds nothing is repeated after one, two and four spacings: the hint may have come
  before what it tells of can be seen. Then the log keeps its own pace as if nobody had said
  anything;
- each such look costs one of `CREDIT`, and gets it back if it finds a record. Time gives back
  `CREDIT_PER_S`. Without credit a hint waits for it. So **of hints that find nothing, however
  many come, `CREDIT` looks are made at once and `CREDIT_PER_S` a second from then on**.

A hint that waits is taken along by any other look, for nothing.

A notice of the database itself is sure: it asks for one look, without credit; `announcement.py`
bounds how many there are.
"""

from __future__ import annotations

import math

SPACING_SHARE = 0.4
QUICK = (1, 2, 4)
"""Spacings between the repetitions of a look that found nothing."""
CREDIT = 20.0
CREDIT_PER_S = 20.0


class Hints:
    """The hints of one tail. All times are seconds of one monotonic clock.

    Args:
        poll_min_s: the store's shortest pause between two polls.
    """

    def __init__(self, poll_min_s: float) -> None:
        self.spacing_s = poll_min_s * SPACING_SHARE
        self.due_s = math.inf
        """The time to look for a hint's sake; infinity: there is no need."""
        self.waits = False
        """True while a hint waits for a look: another one would say nothing new."""
        self._free_s = -math.inf
        """Before this time no look is made for a hint's sake."""
        self._credit = CREDIT
        self._credited_s = -math.inf
        self._quick = len(QUICK)
        """Number of the repetitions that are over."""
        self._began_s = 0.0
        self._taken = False
        self._paid = False
        self._charged = False
        self._sure = False

    def heard(self, now_s: float) -> None:
        """Take in a hint: there may be something to read."""
        self.waits = True
        self._quick = 0
        self.due_s = min(self.due_s, max(now_s, self._free_s, self._creditable_s(now_s)))

    def told(self, now_s: float) -> None:
        """Take in a notice of the database: there was a commit, and it can be read. Its look costs
        no credit and is not repeated; whoever calls this bounds their number."""
        self.waits = self._sure = True
        self.due_s = min(self.due_s, max(now_s, self._free_s))

    def begin(self, now_s: float) -> None:
        """Begin a look at everything, whatever its reason is."""
        self._taken = self.due_s < math.inf
        self._paid = self.due_s <= now_s
        self._began_s = now_s
        self._charged = self._paid and not self._sure
        if self._charged:
            self._refill(now_s)
            self._credit -= 1
        self.due_s = math.inf
        self.waits = self._sure = False

    def end(self, now_s: float, found: bool) -> None:
        """End the look; `found`: it brought records. Not called after one that failed: what
        follows an error is a look at everything."""
        if self._paid:
            self._free_s = max(self._began_s + self.spacing_s, 2 * now_s - self._began_s)
            if found and self._charged:
                self._credit = min(CREDIT, self._credit + 1)
            # What was heard during it may have been too late for it, and stays due.
            self.due_s = max(self.due_s, self._free_s)
        if found:
            # What made that look wait has come, so whoever is heard next gets one look for it.
            self._quick = len(QUICK)
        elif self._taken and not self.waits and self._quick < len(QUICK):
            again_s = now_s + self.spacing_s * QUICK[self._quick]
            self._quick += 1
            self.due_s = max(again_s, self._free_s, self._creditable_s(now_s))
        self._taken = self._paid = False

    def _creditable_s(self, now_s: float) -> float:
        """Return when there is credit for one look."""
        self._refill(now_s)
        return now_s + max(0.0, 1 - self._credit) / CREDIT_PER_S

    def _refill(self, now_s: float) -> None:
        passed_s = now_s - self._credited_s
        if passed_s > 0:
            self._credit = min(CREDIT, self._credit + passed_s * CREDIT_PER_S)
            self._credited_s = now_s
