"""Remembers which queues several tenants send to. Pure."""

from __future__ import annotations

LATELY_US = 600_000_000
"""A tenant that has sent nothing for so long waits for nobody."""


class RecentTenants:
    """By queue the tenant whose task came last, and the time at which that was another one."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._changed_us: dict[str, int] = {}

    def came(self, queue: str, tenant: str, now_us: int) -> None:
        """Take in that a task of a tenant has come."""
        last = self._last.get(queue)
        if last != tenant:
            self._last[queue] = tenant
            if last is not None:
                self._changed_us[queue] = now_us

    def several(self, queue: str, now_us: int) -> bool:
        """Return whether tasks of more than one tenant came lately."""
        changed_us = self._changed_us.get(queue)
        return changed_us is not None and now_us - changed_us < LATELY_US
