"""What a storm does: which faults come when, and what each transaction becomes. Pure, from a seed.

Faults are told by order and pause, not by the clock: the storm carries one out, waits its pause,
and goes on to the next when what it is done to is there. So a slow machine gets the same storm.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

What = Literal[
    "kill_worker", "kill_producer", "kill_server", "stop_worker", "stop_at_settle",
    "die_at_settle", "reset", "blackhole", "blackhole_all", "half_open", "delay", "cut_before",
    "cut_after", "abort",
]  # fmt: skip
"""`..._at_settle`: when the worker is about to write a settlement, or has just written one."""
Fate = Literal["commit", "rollback", "savepoint", "die", "prepare", "cut"]
OWN_FAULT = "own-fault"
"""The queue of tasks that fail until their third attempt. Most of them fail at first, which would
be an outage, in which no attempt is used: the storm turns that off for it (`smart_retry`)."""
Work = Literal["quick", "slow", "threaded", "flaky", "doomed", "timed"]

TASKS_MAX = 5
"""Of one transaction."""
GAP_S = (0.5, 3.0)


class Traits(msgspec.Struct, frozen=True):
    """What a database can take part in."""

    savepoints: bool
    prepared: bool
    """Transactions in two phases."""
    network: bool
    """There is one to break; else it is a file."""
    writers: bool
    """More than one transaction writes at a time."""


class Size(msgspec.Struct, frozen=True):
    """How large a storm is."""

    tasks: int
    """Committed ones, at least."""
    producers: int = 2
    workers: int = 3
    shards: int = 8
    faults: Mapping[What, int] = msgspec.field(default_factory=dict)
    calm: bool = False
    """Every transaction commits or is rolled back, and no worker's task fails."""
    lasts_s: float | None = None
    """Over how long the producers spread their transactions; as long as the faults by default."""
    timed_share: float = 0.05
    timed_within_s: float = 3.0
    gap_s: tuple[float, float] = GAP_S
    """Between two faults."""
    outage_ttl: tuple[float, float] = (1.5, 3.0)
    """How long a fault lasts, in leases."""


class Fault(msgspec.Struct, frozen=True):
    """One of them: done, waited for, and ended."""

    what: What
    pause_s: float
    """Between the last one's beginning and this one's."""
    target: float
    """In [0, 1): which of those that are there."""
    for_s: float
    """Faults that last, in units of the lease's time to live."""


class Deed(msgspec.Struct, frozen=True):
    """One transaction."""

    fate: Fate
    works: tuple[Work, ...]
    kept: bool
    """Of a prepared one: whether it is committed in the end."""
    rest: float
    """In [0, 1): how long it is open, and how long its producer rests afterwards."""
    delays: tuple[float, ...]
    """In [0, 1), one per task, for those that are timed."""


def faults(seed: int, size: Size) -> list[Fault]:
    """All faults of a storm, mixed."""
    choose = random.Random(f"faults {seed}")
    kinds = [what for what in sorted(size.faults) for _ in range(size.faults[what])]
    choose.shuffle(kinds)
    return [
        Fault(
            what,
            choose.uniform(*size.gap_s),
            choose.random(),
            choose.uniform(*size.outage_ttl),
        )
        for what in kinds
    ]


def lasts_s(seed: int, size: Size) -> float:
    """How long the faults of a storm take, at least."""
    if size.lasts_s is not None:
        return size.lasts_s
    return sum(fault.pause_s for fault in faults(seed, size))


def fates(traits: Traits, *, calm: bool) -> dict[Fate, int]:
    """Shares in percent; what a database cannot do is committed instead."""
    if calm:
        shares: dict[Fate, int] = {"rollback": 20}
    else:
        shares = {"rollback": 20, "die": 5}
        if traits.network:
            shares["cut"] = 5
    if traits.savepoints:
        shares["savepoint"] = 10
    if traits.prepared:
        shares["prepare"] = 5
    return {"commit": 100 - sum(shares.values()), **shares}


def deeds(seed: int, producer: int, traits: Traits, size: Size) -> Iterator[Deed]:
    """What one producer does, without end: it stops when it has committed enough."""
    choose = random.Random(f"producer {producer} of {seed}")
    shares = fates(traits, calm=size.calm)
    works: dict[Work, float] = {"quick": 70, "slow": 8, "threaded": 12}
    if not size.calm:
        works |= {"flaky": 6, "doomed": 4}
    works["timed"] = sum(works.values()) * size.timed_share / max(1e-9, 1 - size.timed_share)
    while True:
        chosen = choose.choices(list(works), list(works.values()), k=choose.randint(1, TASKS_MAX))
        yield Deed(
            fate=choose.choices(list(shares), list(shares.values()))[0],
            works=tuple(chosen),
            kept=choose.random() < 0.5,
            rest=choose.random(),
            delays=tuple(choose.random() for _ in chosen),
        )
