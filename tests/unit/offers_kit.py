"""A table of offers in memory, and an owner with its pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from late.dispatcher.offers.pool import OfferPool
from late.errors import StoreRefused, StoreUnavailable
from late.model.offers import Answer, Offer, OfferKey, OfferState
from late.model.task import Outcome, Policy
from tests.unit.dispatcher_kit import NOW_US

POLICY = Policy(max_attempts=3)
DONE = Answer("done", POLICY, "local", NOW_US, 7)


@dataclass
class Table:
    """The rows of `late_offer`, with the rules of the real one."""

    rows: dict[OfferKey, OfferState] = field(default_factory=dict)
    offers: dict[OfferKey, Offer] = field(default_factory=dict)
    away: int = 0
    """So many calls fail from now on."""
    refused: bool = False
    calls: list[str] = field(default_factory=list)
    names: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """What workers have declared."""

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.refused:
            raise StoreRefused("permission denied for table late_offer")
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")

    def change(self, key: OfferKey, **values: object) -> None:
        self.rows[key] = msgspec.structs.replace(self.rows[key], **values)

    def put(self, offers: Sequence[Offer]) -> None:
        self._call("put")
        for each in offers:
            if each.key not in self.rows:
                self.offers[each.key] = each
                self.rows[each.key] = OfferState(each.key, each.epoch)

    def states(self, owner: str) -> list[OfferState]:
        self._call("states")
        return [row for key, row in self.rows.items() if self.offers[key].owner == owner]

    def handlers(self, worker_ids: Collection[str]) -> dict[str, frozenset[str] | None]:
        self._call("handlers")
        return {each: self.names[each] for each in worker_ids if each in self.names}

    def withdraw(self, offers: Sequence[Offer], *, untaken: bool = False) -> list[Offer]:
        self._call("withdraw")
        gone = [o for o in offers if o.key in self.rows
                and not (untaken and self.rows[o.key].runner is not None)]  # fmt: skip
        for each in gone:
            del self.rows[each.key]
        return gone

    def find(self, me: str, groups: Collection[str]) -> list[Offer]:
        self._call("find")
        return [self.offers[key] for key, row in self.rows.items()
                if row.runner in (None, me) and row.answer is None
                and me not in row.refused_by and key.group in groups]  # fmt: skip

    def take(self, me: str, offers: Sequence[Offer]) -> list[Offer]:
        self._call("take")
        for each in offers:
            self.change(each.key, runner=me)
        return list(offers)

    def answer(self, me: str, answers: Sequence[tuple[Offer, Answer]]) -> list[Offer]:
        self._call("answer")
        for each, answer in answers:
            self.change(each.key, answer=answer)
        return [each for each, _ in answers]

    def give_back(self, me: str, offers: Sequence[Offer], *, refused: bool) -> list[Offer]:
        self._call("give_back")
        for each in offers:
            names = self.rows[each.key].refused_by | ({me} if refused else set())
            self.change(each.key, runner=None, refused_by=names)
        return list(offers)


class Owner:
    """An owner's pool, its table, and what it reported."""

    def __init__(self) -> None:
        self.table = Table()
        self.others = frozenset({"w2"})
        self.now = 100.0
        self.outcomes: list[Outcome] = []
        self.policies: list[Policy] = []
        self.pool = OfferPool(
            "w1",
            table=lambda: self.table,
            others=lambda group: self.others,
            now_us=lambda: NOW_US,
            on_finished=self.outcomes.extend,
            adopt=lambda _, policy: self.policies.append(policy),
            clock=lambda: self.now,
        )

    def key(self) -> OfferKey:
        (key,) = self.table.rows
        return key

    async def until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def looks(self, count: int = 2) -> None:
        """Wait until it has looked so often from now on."""
        seen = self.table.calls.count("states")
        await self.until(lambda: self.table.calls.count("states") >= seen + count)

    async def ended(self, *kinds: str) -> Outcome:
        """Wait for these ends, until no row is left."""
        await self.until(lambda: len(self.outcomes) >= len(kinds) and not self.table.rows)
        assert [outcome.kind for outcome in self.outcomes] == list(kinds)
        return self.outcomes[-1]


@asynccontextmanager
async def owning() -> AsyncIterator[Owner]:
    made = Owner()
    await made.pool.start()
    yield made
    await made.pool.stop(0.0)
