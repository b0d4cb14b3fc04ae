"""Decide when a tail announces that it sleeps, and when it takes that back. Pure.

Who has announced it is told of each commit (`late.store.base.WakeUps`), which costs the committing
transaction something. So:

- a tail announces after `SLEEP_AFTER` shortest polls in which nothing came, or after `CALM_S` with
  so few records that it could bear a notice of each. Then it **looks once more**, and only then it
  sleeps: what was committed before the announcement is found by that look, and what is inserted
  after it is told of;
- it stays announced while commits are told of at `NOTICES_PER_S` or less; at such a rate a
  notice costs little, and the tail needs no polls. At a higher rate it takes the announcement back
  and polls. **A busy path pays `NOTICES` notices and then none**;
- after that it announces no sooner than `HOLD_S` later. If the announcement lasted for less than
  `LASTED_S`, the next time is twice as long, up to `HOLD_MAX_S`: another worker's shards may be
  busy while ours are silent.

While it sleeps it polls all the same, each time after half as long again as the announcement has
stood, `LOOK_MAX_S` at most: a transaction that inserted before the announcement and committed after
the second look tells nobody. And a notice may be lost. Tasks that are told of change nothing about
that, so a trickle costs one look for each. Where records came of which nobody told, and for
`DOUBT_S` after that, the silence since the last records counts too, as if nothing was announced.

An announcement that another worker has taken back is lost; then it is made again at once.
"""

from __future__ import annotations

import math

SLEEP_AFTER = 4
LOOK_SHARE = 0.5
LOOK_MAX_S = 5.0
LONGER = 5
"""A tail that is told may sleep so many times as long as one that nobody tells anything."""
RENEW_S = 12.0
NOTICES = 25.0
NOTICES_PER_S = 250.0
CALM_S = 1.0
HOLD_S = 0.25
HOLD_MAX_S = 4.0
LASTED_S = 1.0
DOUBT_S = 30.0
CROSSED_S = 0.05
"""A look may find a record while the notice of it is on its way."""


class Announcement:
    """The announcement of one tail. All times are seconds of one monotonic clock.

    Args:
        poll_min_s: the store's shortest pause between two polls.
    """

    def __init__(self, poll_min_s: float) -> None:
        self._poll_min_s = poll_min_s
        self._since_s: float | None = None
        self._renewed_s = -math.inf
        self._free_s = -math.inf
        """Before this time it is not announced."""
        self._hold_s = HOLD_S
        self._notices = NOTICES
        self._counted_s = -math.inf
        self._crowded_s = math.inf
        """The last time at which half of the notices were spent; at first, of the first count."""
        self._told = False
        self._untold_s = -math.inf
        """The last time at which records came of which nobody told."""

    @property
    def stands(self) -> bool:
        """True if commits are told of, as far as this tail knows."""
        return self._since_s is not None

    @property
    def overrun(self) -> bool:
        """True if it must be taken back: too many commits are told of."""
        return self.stands and self._notices < 1

    def due(self, now_s: float, quiet_s: float) -> bool:
        """Tell whether to announce now, or to renew. `quiet_s`: the silence so far."""
        if self.stands:
            return now_s - self._renewed_s >= RENEW_S
        self._refill(now_s)
        calm = now_s - self._crowded_s >= CALM_S or quiet_s >= SLEEP_AFTER * self._poll_min_s
        return calm and now_s >= self._free_s

    def made(self, now_s: float) -> None:
        """Note that it was announced, or renewed."""
        if self._since_s is None:
            self._since_s = now_s
            self._refill(now_s)
        self._renewed_s = now_s

    def lost(self) -> None:
        """Note that it does not stand: it could not be made, nobody listens, or another worker has
        taken it back."""
        self._since_s = None

    def withdrawn(self, now_s: float) -> None:
        """Note that it was taken back, because too many commits were told of."""
        lasted_s = now_s - (self._since_s if self._since_s is not None else now_s)
        self._hold_s = min(HOLD_MAX_S, self._hold_s * 2) if lasted_s < LASTED_S else HOLD_S
        self._free_s = now_s + self._hold_s
        self._since_s = None

    def heard(self, now_s: float) -> bool:
        """Count a notice of a commit; False: it is one too many, or nothing was announced."""
        self._refill(now_s)
        self._notices = max(0.0, self._notices - 1)
        if now_s - self._untold_s <= CROSSED_S:
            self._untold_s = -math.inf
        return self.stands and self._notices >= 1

    def found(self, now_s: float, records: int, *, told: bool) -> None:
        """Note that a look brought records; `told`: it was made because of a notice."""
        self._told = told
        if not self.stands:  # Each may be a notice from the next announcement on.
            self._refill(now_s)
            self._notices = max(0.0, self._notices - records)
        elif not told:
            self._untold_s = now_s

    def look_after_s(self, now_s: float, quiet_s: float, most_s: float) -> float:
        """Return the longest wait before the next look of a tail that sleeps.

        Args:
            quiet_s: the silence so far.
            most_s: the longest pause of a tail that nobody tells anything.
        """
        assert self._since_s is not None
        least_s = self._poll_min_s * (2 if self._told else 1)
        sure_s = now_s - self._since_s
        if now_s - self._untold_s < DOUBT_S:
            sure_s = min(quiet_s, sure_s)
        return min(most_s * LONGER, LOOK_MAX_S, max(least_s, sure_s * LOOK_SHARE))

    def _refill(self, now_s: float) -> None:
        passed_s = now_s - self._counted_s
        if passed_s > 0:
            self._notices = min(NOTICES, self._notices + passed_s * NOTICES_PER_S)
            self._counted_s = now_s
        if self._notices < NOTICES / 2 or self._crowded_s == math.inf:
            self._crowded_s = now_s
