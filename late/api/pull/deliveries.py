"""Take pulled tasks from the pools of this process and make deliveries for consumers of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from late.api.access.peer_keys import Keyring
from late.api.payloads import decode_payload
from late.api.pull.receipts import Receipt, StaleReceipt, seal
from late.concurrency import in_thread
from late.dispatcher.pull.pool import PullPool
from late.dispatcher.pull.pools import receive
from late.dispatcher.pull.queue import PullLease, identity
from late.dispatcher.subject_keys import fetch
from late.errors import DecodeError
from late.handler.classify import Refused, Verdict, raised
from late.model.task import Attempt
from late.payload.codec import Codec
from late.payload.subject_keys import SubjectKeyNeeded

LIFE_US = 7 * 86_400_000_000
"""Microseconds for which extensions can keep a task with one consumer."""
_headers = msgspec.json.Decoder(dict[str, str]).decode


class Delivery(msgspec.Struct, frozen=True):
    """One attempt for a consumer."""

    attempt: Attempt
    payload: bytes
    """The payload as a JSON object."""
    headers: dict[str, str]
    receipt: str
    visible_until_us: int


class TakeRequest(msgspec.Struct, frozen=True):
    """A request of one consumer for tasks."""

    group: str
    """A consumer group. Empty is the default one, for `Service.take` only."""
    queues: tuple[str, ...]
    limit: int
    """The most tasks to take."""
    wait_s: float
    """Seconds to wait for the first task."""
    visibility_s: float
    consumer: str
    names: frozenset[str] | None
    """Take tasks of these names only; None takes all."""
    whole: bool = False
    """It comes from a process with the app, which opens the stored payload itself."""


class Source(Protocol):
    """A place that attempts are taken from, as the interfaces need it."""

    @property
    def queues(self) -> frozenset[str]:
        """The queues that can be pulled."""

    @property
    def groups(self) -> frozenset[str]: ...
    async def take(self, ask: TakeRequest) -> list[Delivery]:
        """Take tasks, or none when the wait is over."""

    async def answer(self, receipt: Receipt, verdict: Verdict) -> None:
        """Say how an attempt ended. Raises `StaleReceipt`."""

    async def extend(self, receipt: Receipt, visibility_s: float) -> int:
        """Give the consumer more time, and return until when, in microseconds.

        Raises `StaleReceipt`.
        """

    async def drop(self, consumer: str) -> None:
        """Take back all that this consumer has: it is gone. A name with a `/` at its end stands for
        all consumers of a token."""


class Local:
    """The pools of this process."""

    def __init__(
        self,
        pools: Mapping[str, PullPool],
        *,
        worker: str,
        groups: Sequence[str],
        codec: Codec,
        keys: Keyring,
        url: str,
    ) -> None:
        """`url` is the database with the keys of subjects."""
        self.queues = frozenset(pools)
        self.groups = frozenset(groups)
        self._pools = pools
        self._worker = worker
        self._codec = codec
        self._keys = keys
        self._url = url

    async def take(self, ask: TakeRequest) -> list[Delivery]:
        """Take tasks of the queues and groups that are here; see `Source.take`.

        A task that cannot be read becomes a dead letter and is not delivered. The list may
        therefore be empty before `wait_s` is over.
        """
        pools = [self._pools[queue] for queue in ask.queues if queue in self._pools]
        if not pools or ask.group not in self.groups:
            return []
        found = await receive(
            pools,
            ask.group,
            limit=ask.limit,
            wait_s=ask.wait_s,
            visibility_s=ask.visibility_s,
            consumer=ask.consumer,
            names=ask.names,
        )
        made = []
        for pool, hold in found:
            try:
                made.append(self._deliver(pool, hold, whole=ask.whole))
            except SubjectKeyNeeded as needed:
                made.append(await self._deliver_with(needed, pool, hold))
        return [delivery for delivery in made if delivery is not None]

    async def _deliver_with(
        self, needed: SubjectKeyNeeded, pool: PullPool, hold: PullLease
    ) -> Delivery | None:
        """Read the key that is needed, and make the delivery."""
        while True:
            try:
                await in_thread(partial(fetch, self._url, needed))
                return self._deliver(pool, hold, whole=False)
            except SubjectKeyNeeded as again:
                needed = again
            except Refused as refused:
                pool.answer(hold, refused.verdict)
                return None

    async def answer(self, receipt: Receipt, verdict: Verdict) -> None:
        pool, hold = self._held(receipt)
        pool.answer(hold, verdict)

    async def extend(self, receipt: Receipt, visibility_s: float) -> int:
        pool, hold = self._held(receipt)
        pool.extend(hold, visibility_s)
        return hold.until_us

    async def drop(self, consumer: str) -> None:
        for pool in self._pools.values():
            pool.drop(consumer)

    def _held(self, receipt: Receipt) -> tuple[PullPool, PullLease]:
        pool = self._pools.get(receipt.queue)
        if pool is None or receipt.worker != self._worker:
            raise StaleReceipt("stale receipt")
        hold = pool.find(receipt.serial, receipt.identity, until_us=receipt.expires_us)
        if hold is None:
            raise StaleReceipt("stale receipt")
        return pool, hold

    def _deliver(self, pool: PullPool, hold: PullLease, *, whole: bool) -> Delivery | None:
        attempt = hold.attempt
        record = attempt.record
        try:
            payload = b"" if whole else decode_payload(self._codec, record, attempt.options)
            headers = _headers(record.headers) if record.headers and not whole else {}
        except (DecodeError, msgspec.MsgspecError) as error:
            broken = error if isinstance(error, DecodeError) else DecodeError("headers: no JSON")
            pool.answer(hold, raised(broken, None))
            return None
        expires_us = hold.started_us + LIFE_US
        receipt = Receipt(self._worker, record.queue, *identity(attempt), hold.serial, expires_us)
        return Delivery(attempt, payload, headers, seal(self._keys.current, receipt), hold.until_us)
