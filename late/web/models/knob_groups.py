"""The knobs of a form in groups: those that are set on top and open, the others folded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from late.web.models.queues import PREFIX, Field

SET, OTHERS = "Set", "Others"
GROUPS: Mapping[str, Sequence[str]] = {
    "Pace": ("paused", "concurrency", "rate", "burst", "slow_start_s", "foreground"),
    "New tasks": ("closed", "max_backlog", "key_backlog"),
    "Failures": ("retry_budget", "retry_min", "breaker", "breaker_calls", "breaker_open_s",
                 "smart_retry"),
    "Time": ("timeout_s", "expires_s", "fresh_first_s", "spread_s"),
    "Tenants and keys": ("fair_key", "fair_share", "key_concurrency", "key_rate"),
    "Owner and alerts": ("owner", "severity", "objective_s", "late_share"),
}  # fmt: skip
"""Names of knobs by group. One that is in none is in `OTHERS`."""


class KnobGroup(msgspec.Struct, frozen=True):
    """Some fields of the form, under one name."""

    name: str
    fields: tuple[Field, ...]
    is_open: bool


def knob_groups(
    fields: Iterable[Field], set_: Iterable[str], sent: Mapping[str, str]
) -> list[KnobGroup]:
    """Put each field into its group, and the groups with something in them in order.

    Args:
        set_: the names of the knobs that are set. They are one group, the first.
        sent: the texts that were typed, if the form comes back: their group is open.
    """
    on_top = frozenset(set_)
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    found: dict[str, list[Field]] = {name: [] for name in (SET, *GROUPS, OTHERS)}
    for field in fields:
        found[SET if field.name in on_top else group_of.get(field.name, OTHERS)].append(field)
    return [
        KnobGroup(name, tuple(some), name == SET or any(sent.get(PREFIX + f.name) for f in some))
        for name, some in found.items()
        if some
    ]
