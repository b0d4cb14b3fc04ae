"""Journals with a past, for tests of what compaction makes of them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from late.control import Control
from late.model.histogram import histogram
from late.model.task import Usage
from late.model.usage_sums import summed
from late.store.base import PruneReport, SettleResult, Store
from late.store.common.compaction import Compacted, Stretch
from late.store.postgres import compaction as of_postgres
from late.store.spanner import prune as of_spanner
from late.store.sqlite import prune as of_sqlite
from tests.conformance.backends import Raw
from tests.conformance.kit import Owner, own

Step = Callable[[Stretch, int], Awaitable[Compacted]]

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
KEEP_S = 30 * 86_400.0
PLANNERS = (of_postgres, of_spanner, of_sqlite)
"""The modules that call `plan_sums`."""
_usage_of = msgspec.json.Decoder(tuple[Usage, ...]).decode


def usage(rng: random.Random) -> tuple[Usage, ...]:
    """What a settlement may have counted: now and then nothing, with and without tenants. No
    arrivals: `late verify` would miss those that never ended."""
    found = []
    for _ in range(rng.randrange(4)):
        times = [rng.randrange(1, 10**7) for _ in range(rng.randrange(5))]
        found.append(
            Usage(
                rng.choice(["default", "mail"]),
                rng.choice(["count", "send"]),
                rng.choice(["", "local"]),
                rng.choice(["done", "retried", "died"]),
                rng.randrange(9),
                len(times),
                sum(times),
                rng.randrange(99),
                rng.randrange(9_999),
                rng.randrange(3),
                rng.randrange(3),
                rng.randrange(3),
                histogram(times),
                histogram(times[1:]),
                rng.choice([None, "", "acme", "ünï"]),
            )
        )
    return summed(found)


async def past(
    owner: Owner, raw: Raw, count: int, *, ago_us: int, apart_us: int, seed: int = 1
) -> None:
    """Settle `count` times, the last one `ago_us` before now, each `apart_us` after the other."""
    rng = random.Random(seed)
    # In the middle of a minute, so that rows which are near each other are in one.
    end_us = (await owner.store.now() - ago_us) // MINUTE_US * MINUTE_US + MINUTE_US // 2
    if owner.seq == owner.lease.seq:  # the takeover is as old
        settled_at(raw, owner, owner.seq, end_us - count * apart_us)
    for number in range(count):
        assert await owner.settle(usage=usage(rng)) is SettleResult.SETTLED
        at_us = end_us - (count - 1 - number) * apart_us
        settled_at(raw, owner, owner.seq, at_us)


def settled_at(raw: Raw, owner: Owner, seq: int, at_us: int) -> None:
    raw.execute(
        "update late_settlement set settled_at_us = ?"
        " where consumer_group = ? and shard_id = ? and seq = ?",
        at_us, owner.lease.group, owner.lease.shard_id, seq,
    )  # fmt: skip


def rows(raw: Raw, shard: int = 0) -> list[tuple[Any, ...]]:
    return raw.execute(
        "select seq, first_seq, epoch, owner, usage, settled_at_us, cursor, settlement_id"
        " from late_settlement where shard_id = ? order by seq",
        shard,
    )


def sums(raw: Raw, shard: int = 0) -> tuple[Usage, ...]:
    return summed(each for row in rows(raw, shard) for each in _usage_of(row[4] or "[]"))


def tiles(raw: Raw, shard: int = 0) -> bool:
    """Every settlement is in one row and no more."""
    reached = None
    for seq, first_seq, *_ in rows(raw, shard):
        first = seq if first_seq is None else first_seq
        if reached is not None and first != reached + 1:
            return False
        reached = seq
    return True


async def compact(store: Store, **ages: float) -> PruneReport:
    return await store.prune(journal_keep_s=KEEP_S, **ages)


def sound(url: str, raw: Raw, counted: tuple[Usage, ...], shard: int = 0) -> None:
    """Assert that nothing is counted twice or lost, as `late verify` sees it, too."""
    assert tiles(raw, shard)
    assert sums(raw, shard) == counted
    with Control(url) as control:
        assert control.verify().problems == ()


async def three_terms(store: Store, other: Store, raw: Raw) -> Owner:
    """A journal of days and hours ago, of two workers; the last owner lives."""
    owner = await own(store, name="w1")
    await past(owner, raw, 9, ago_us=27 * HOUR_US, apart_us=90_000_000)
    await store.release([owner.lease])
    owner = await own(other, name="w2")
    await past(owner, raw, 9, ago_us=26 * HOUR_US, apart_us=11_000_000, seed=2)
    await other.release([owner.lease])
    owner = await own(store, name="w1")
    await past(owner, raw, 9, ago_us=3 * HOUR_US, apart_us=11_000_000, seed=3)
    return owner


class Killed(Exception):
    """The process ended here."""


def compactor_of(store: Any) -> Any:
    """Return the compactor of any store: PostgreSQL's pruner holds its own."""
    return getattr(store, "_pruner", store)._compactor


class Steps:
    """Runs `before` and `after` around every step of a store's compaction, which is one
    transaction, or a look whether there is anything to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
        self.monkeypatch = monkeypatch
        self.taken = 0
        self.before: Callable[[], Awaitable[None]] | None = None
        self.after: Callable[[], Awaitable[None]] | None = None
        compactor = compactor_of(store)
        run = compactor.run

        async def watched(journals: Any, step: Step, **ages: Any) -> int:
            async def around(stretch: Stretch, limit: int) -> Compacted:
                if self.before is not None:
                    await self.before()
                done = await step(stretch, limit)
                self.taken += 1
                if self.after is not None:
                    await self.after()
                return done

            count: int = await run(journals, around, **ages)
            return count

        monkeypatch.setattr(compactor, "run", watched)

    def die_after(self, steps: int) -> None:
        """Let the process end when so many steps are done."""
        self.taken = 0

        async def after() -> None:
            if self.taken == steps:
                raise Killed

        self.after = after
