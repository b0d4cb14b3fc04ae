"""Leave shards alone for a while whose settlement the store has refused for too long. Pure.

It was kept for a time (`late.dispatcher.kept_settlements`). Now what is in memory is thrown away,
and all that the shard had open runs again. As a rule that is refused too (a right that the role has
lost, a row that breaks a constraint), so each try comes after a longer wait: full jitter, because
peers may be refused as well, at most `WAIT_MAX_S`. A settlement of the shard that succeeds ends the
row of failures.
"""

from __future__ import annotations

import random

from late.clock import Monotonic
from late.model.backoff import Backoff
from late.tailer.ownership import Key

WAIT_MIN_S = 5.0
WAIT_MAX_S = 30.0
TRY_S = 10.0
"""A try that was not refused for so long, or had nothing to settle, counts as one that gets on."""


class ShardQuarantine:
    """The quarantined shards of one worker. Never larger than the number of its shards."""

    def __init__(self, rng: random.Random, monotonic: Monotonic) -> None:
        self._rng = rng
        self._monotonic = monotonic
        self._backoffs: dict[Key, Backoff] = {}
        self._until_s: dict[Key, float] = {}
        self._recent_s = 0.0
        self._error = ""

    def add(self, key: Key, error: str, *, again: bool) -> float:
        """Count one more refusal; return for how long to leave the shard alone.

        Args:
            error: the words of the store.
            again: nothing of the shard was settled since it was last acquired.
        """
        if not again or key not in self._backoffs:
            self._backoffs[key] = Backoff(self._rng, base_s=WAIT_MIN_S, cap_s=WAIT_MAX_S)
        self._error = error
        wait_s = self._backoffs[key].next_s()
        self._until_s[key] = until_s = self._monotonic() + wait_s
        self._recent_s = max(self._recent_s, until_s + TRY_S)
        return wait_s

    def waits(self, key: Key) -> bool:
        """Return whether the shard is to be left alone now."""
        return self._monotonic() < self._until_s.get(key, 0.0)

    @property
    def error(self) -> str:
        """The words of the last refusal, while it is `recent`; else empty."""
        return self._error if self.recent else ""

    @property
    def recent(self) -> bool:
        """True while a shard is left alone, or is being tried again: the worker owes its
        settlements, although none waits in memory."""
        return self._monotonic() < self._recent_s
