"""The keys of a deployment, with which its processes seal receipts and know each other. Pure.

Only workers may read them (`late_secret`). A new key is read by every process within some
`LOAD_EVERY_S`, but none seals with it before `SPREAD_US` are over: by then all accept it. The key
before it is accepted for `KEPT_US` more, which is longer than any receipt is valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LOAD_EVERY_S = 4.0
"""Between two reads of the keys, in each process, give or take a fifth."""
SPREAD_US = 30 * 1_000_000
KEPT_US = 8 * 86_400 * 1_000_000
"""A receipt that is extended again and again is valid for seven days (`LIFE_US` of deliveries)."""


class DeploymentKey(msgspec.Struct, frozen=True):
    """One key, as it is stored."""

    number: int
    value: bytes
    created_at_us: int

    def __repr__(self) -> str:
        return f"DeploymentKey({self.number})"  # a log or a traceback must not show the value


def sealing(keys: Sequence[DeploymentKey], now_us: int) -> DeploymentKey:
    """Return the key to seal with: the newest that all processes know; if all are new, the oldest.

    Args:
        keys: at least one.
    """
    ordered = sorted(keys, key=lambda key: key.number)
    known = [key for key in ordered if key.created_at_us + SPREAD_US <= now_us]
    return known[-1] if known else ordered[0]


def accepted(keys: Sequence[DeploymentKey], now_us: int) -> list[DeploymentKey]:
    """Return the keys that are valid, the newest first: all but those that were replaced more than
    `KEPT_US` ago."""
    ordered = sorted(keys, key=lambda key: key.number, reverse=True)
    replaced = [key.created_at_us for key in ordered]
    return ordered[:1] + [
        key for key, after in zip(ordered[1:], replaced, strict=False) if now_us < after + KEPT_US
    ]
