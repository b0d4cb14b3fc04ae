"""Settlements that the database refuses, and that are sent again later. Pure.

What a shard has run is in memory, and would run again if it were thrown away. The cause is, as a
rule, one that an operator mends: a right that the role has lost, a constraint, a quota. So such a
settlement is kept for a while and sent again, alone, and nothing runs twice once it is mended.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from late.clock import Monotonic
from late.model.backoff import Backoff
from late.store.base import Settlement

KEEP_S = 600.0
"""So long a settlement is kept. After that its shard is given up: another worker may be allowed to
write it, and another run of its tasks may be taken."""
WAIT_MIN_S = 2.0
WAIT_MAX_S = 30.0
SOON_S = 0.001
"""So much earlier it counts as due: who waits for it may wake a moment before."""


@dataclass(slots=True)
class _Kept:
    settlement: Settlement
    backoff: Backoff
    until_s: float
    due_s: float


class KeptSettlements:
    """The settlements of one worker that were refused, one for a shard and an epoch."""

    def __init__(self, rng: random.Random, monotonic: Monotonic, keep_s: float = KEEP_S) -> None:
        self._rng = rng
        self._monotonic = monotonic
        self._keep_s = keep_s
        self._kept: dict[tuple[str, int, int], _Kept] = {}
        self._error = ""

    def add(self, settlement: Settlement, error: str) -> float | None:
        """Count one more refusal; return for how long to leave it alone, or None: give it up.

        Args:
            error: the words of the store.
        """
        now_s = self._monotonic()
        kept = self._kept.get(_key(settlement))
        if kept is None:
            backoff = Backoff(self._rng, base_s=WAIT_MIN_S, cap_s=WAIT_MAX_S)
            kept = _Kept(settlement, backoff, now_s + self._keep_s, now_s)
        if now_s >= kept.until_s or not self._keep_s:
            self._kept.pop(_key(settlement), None)
            return None
        wait_s = kept.backoff.next_s()
        kept.due_s, self._error = now_s + wait_s, error
        self._kept[_key(settlement)] = kept
        return wait_s

    def remove(self, settlement: Settlement) -> None:
        """Forget one that the store has answered."""
        self._kept.pop(_key(settlement), None)

    def give_up(self) -> None:
        """Keep none any more: each is sent once more, now."""
        self._keep_s = 0.0
        for kept in self._kept.values():
            kept.due_s = kept.until_s = self._monotonic()

    def due(self) -> list[Settlement]:
        """Return those that are to be sent again now."""
        until_s = self._monotonic() + SOON_S
        return [kept.settlement for kept in self._kept.values() if kept.due_s <= until_s]

    @property
    def due_s(self) -> float | None:
        """The time (monotonic) at which the next one is due; None if none is kept."""
        return min([kept.due_s for kept in self._kept.values()], default=None)

    @property
    def error(self) -> str:
        """The words of the last refusal, while one is kept; else empty."""
        return self._error if self._kept else ""


def _key(settlement: Settlement) -> tuple[str, int, int]:
    """Return what tells a settlement apart: its name is that of all which were built together."""
    return settlement.group, int(settlement.shard_id), int(settlement.epoch)
