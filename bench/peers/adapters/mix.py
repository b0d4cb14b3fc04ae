"""The mix of options of the shapes of tasks, number by number: the same for late and for others.

`common.mjs` has the same arithmetic for the peers in Node.js. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

KEYS = 200
RETRIED = 20
"""One first attempt of so many fails: 5 %."""
DELAYED = 10
"""One task of so many is delayed, by 1 to 5 seconds."""
_SCATTER = 2_654_435_761


@dataclass(frozen=True, slots=True)
class Mixed:
    """What one task of the mix asks for."""

    delay_s: float | None
    key: str | None
    priority: int
    unique: str | None


def scattered(n: int) -> int:
    """Return a number without a visible pattern: fixed steps would meet the same keys."""
    return n * _SCATTER // 256


def fails_first(n: int) -> bool:
    return scattered(n) % RETRIED == 1


def is_delayed(n: int) -> bool:
    return n % DELAYED == 0


def delay_s(n: int) -> float:
    """Return the delay of a delayed task: 1 to 5 seconds, evenly spread."""
    return 1.0 + n // DELAYED % 41 / 10


def mixed(n: int) -> Mixed:
    """Delay one of ten; of the others a quarter has an ordering key, the rest a priority and a
    unique key."""
    if is_delayed(n):
        return Mixed(delay_s(n), None, 0, None)
    if n % 4 == 1:
        return Mixed(None, f"k{n // 4 % KEYS}", 0, None)
    return Mixed(None, None, n % 3, f"u{n}")
