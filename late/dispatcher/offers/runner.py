"""Runs attempts that other workers offer, as if they were of this worker's own shards.

It takes no more than it has free slots for. How an attempt ends is the owner's to record: it is
written to the table of offers, from where the owner takes it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from late.concurrency import in_thread
from late.errors import StoreError
from late.model.backoff import Backoff
from late.model.offers import Answer, Offer, OfferKey, answer_of, key_of
from late.model.task import Attempt, Outcome, Policy, Record

LOOK_S = 1.0
"""The pause between two looks for offers, unless heartbeats tell that there are some."""
BUSY_LOOK_S = 0.2
"""The same after a look that found some."""
FAILED_MAX_S = 30.0
"""The longest pause after an error of the database."""

logger = logging.getLogger("late.dispatcher")


class RunnersTable(Protocol):
    """The offers in the database, for those who run them. Blocking; raises `StoreError`."""

    def find(self, me: str, groups: Collection[str]) -> list[Offer]: ...
    def take(self, me: str, offers: Sequence[Offer]) -> list[Offer]: ...
    def answer(self, me: str, answers: Sequence[tuple[Offer, Answer]]) -> list[Offer]: ...
    def give_back(self, me: str, offers: Sequence[Offer], *, refused: bool) -> list[Offer]: ...


class Taken(NamedTuple):
    """An attempt of another worker's shard, and the rules of this worker for its task."""

    offer: Offer
    policy: Policy


class OfferRunner:
    """Looks for offers and runs them. Everything happens on the loop that called `start`.

    Args:
        me: this worker.
        groups: the consumer groups that it works for.
        table: makes the table; called in a thread.
        others: whether another worker lives, of which there could be offers.
        free: the number of attempts that can start now.
        policy_of: the policy of a task by queue and name; None if it cannot run here.
        read: reads the task's record; None if it is gone. Raises `StoreError`.
        attempt_of: makes the attempt; None if it cannot run here.
        submit: begins attempts; each comes back once, to `keep_taken`.
    """

    def __init__(
        self,
        me: str,
        groups: Collection[str],
        *,
        table: Callable[[], RunnersTable],
        others: Callable[[], bool],
        free: Callable[[], int],
        policy_of: Callable[[str, str], Policy | None],
        read: Callable[[Offer], Awaitable[Record | None]],
        attempt_of: Callable[[Offer, Record], Attempt | None],
        submit: Callable[[list[Attempt]], None],
        rng: random.Random | None = None,
    ) -> None:
        self._me = me
        self._groups = groups
        self._table = table
        self._others = others
        self._free = free
        self._policy_of = policy_of
        self._read = read
        self._attempt_of = attempt_of
        self._submit = submit
        self._rng = rng or random.Random()
        self.taken: dict[OfferKey, Taken] = {}
        """The attempts that run here for others."""
        self._answers: list[tuple[Offer, Answer]] = []
        self._back: list[tuple[Offer, bool]] = []
        """Offers that go back to their owners, and whether this worker refuses each."""
        self._wake = asyncio.Event()
        self._told: bool | None = None
        self._failing = False
        self._stopping = False
        self._ends = False
        self.running: asyncio.Task[None] | None = None
        """The loop, once it was started."""

    def runs(self, attempt: Attempt) -> bool:
        """Tell whether an attempt is of another worker's shard."""
        taken = self.taken.get(key_of(attempt))
        return taken is not None and taken.offer.epoch == attempt.epoch

    def keep_taken(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Keep the outcomes of attempts that were taken from others, and return the rest."""
        rest = []
        for outcome in outcomes:
            if self.runs(outcome.attempt):
                self._ended(self.taken.pop(key_of(outcome.attempt)), outcome)
            else:
                rest.append(outcome)
        return rest

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """Forget attempts of a shard that has a newer owner: nobody waits for their answers."""
        for key, taken in list(self.taken.items()):
            if key[:2] == (group, shard_id) and taken.offer.epoch <= epoch:
                del self.taken[key]

    def told(self, offers: bool | None) -> None:
        """Take in what a heartbeat says: see `Membership.offers`."""
        self._told = offers
        if offers and not self._failing:
            self._wake.set()

    async def start(self) -> None:
        """Begin to look for offers. Twice is fine."""
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(
                self._run(), name="late-offer-runner"
            )

    def drain(self) -> None:
        """Take nothing more."""
        self._stopping = True

    async def stop(self) -> None:
        """Take nothing more, and write the answers. To be called when nothing runs any more.

        The loop is not cancelled: it would not know what it has just taken, and the owner would
        count that as a death.
        """
        self._stopping = self._ends = True
        self._wake.set()
        if self.running is not None:
            await asyncio.wait({self.running})
        try:
            await self._tell()
        except StoreError as error:  # The owner sees that this worker is gone.
            logger.warning("answers to offers were not written: %s", error)

    async def _run(self) -> None:
        backoff = Backoff(self._rng, base_s=LOOK_S, cap_s=FAILED_MAX_S)
        while not self._ends:
            self._wake.clear()
            pause_s: float | None
            try:
                await self._tell()
                looks = not self._stopping and self._told is not False and self._others()
                found = looks and await self._look()
            except StoreError as error:
                logger.warning("offers of other workers: %s", error)
                self._failing, pause_s = True, backoff.next_s()
            else:
                backoff.reset()
                self._failing = False
                pause_s = (BUSY_LOOK_S if found else LOOK_S) * self._rng.uniform(0.8, 1.0)
                if self._told is False:
                    pause_s = None
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look(self) -> bool:
        """Take what can run here; return whether there was something."""
        here = {*self.taken, *(each.key for each, _ in (*self._answers, *self._back))}
        found = await in_thread(lambda: self._table().find(self._me, self._groups))
        can = [each for each in found if each.key not in here and self._policy(each)]
        can = can[: max(0, self._free())]
        if not can:
            return False
        taken = await in_thread(lambda: self._table().take(self._me, can))
        await asyncio.gather(*map(self._begin, taken))
        return True

    async def _begin(self, offer: Offer) -> None:
        """Run an offer that is taken. Whatever fails here, its owner waits for a word of it."""
        policy = self._policy(offer)
        try:
            record = await self._read(offer)
        except StoreError as error:
            logger.warning("an offer of another worker was not read: %s", error)
            self._back.append((offer, False))
            return
        attempt = None if record is None or self._stopping else self._attempt_of(offer, record)
        if attempt is None or policy is None:
            self._back.append((offer, not self._stopping))
            return
        self.taken[offer.key] = Taken(offer, policy)
        self._submit([attempt])

    def _policy(self, offer: Offer) -> Policy | None:
        return self._policy_of(offer.attempt.queue, offer.attempt.name)

    def _ended(self, taken: Taken, outcome: Outcome) -> None:
        if outcome.kind in ("interrupted", "not_capable"):
            self._back.append((taken.offer, outcome.kind == "not_capable"))
        else:
            self._answers.append((taken.offer, answer_of(outcome, taken.policy)))
        self._wake.set()

    async def _tell(self) -> None:
        """Write the answers, and give back what did not run. Late answers change nothing."""
        answers, back = tuple(self._answers), tuple(self._back)
        if answers:
            await in_thread(lambda: self._table().answer(self._me, answers))
            del self._answers[: len(answers)]
        if back:
            await in_thread(self._give_back, back)
            del self._back[: len(back)]

    def _give_back(self, back: Sequence[tuple[Offer, bool]]) -> None:
        for refused in (False, True):
            offers = [offer for offer, cannot in back if cannot == refused]
            self._table().give_back(self._me, offers, refused=refused)
