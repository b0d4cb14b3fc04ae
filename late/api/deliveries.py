"""Take pulled tasks from the pools of this process and make deliveries for consumers of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from late.api.payloads import decode_payload
from late.api.receipts import Receipt, StaleReceipt, seal
from late.dispatcher.pull.pool import PullPool
from late.dispatcher.pull.pools import receive
from late.dispatcher.pull.queue import PullLease, identity
from late.errors import DecodeError
from late.handler.classify import Verdict, raised
from late.model.task import Attempt
from late.payload.codec import Codec

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


class Source(Protocol):
    """A place that attempts are taken from, as the interfaces need it."""

    @property
    def queues(self) -> frozenset[str]:
        """The queues that can be pulled."""

    @property
    def groups(self) -> frozenset[str]: ...
    async def take(
        self,
        group: str,
        queues: Sequence[str],
        *,
        limit: int,
        wait_s: float,
        visibility_s: float,
        consumer: str,
        names: frozenset[str] | None,
        whole: bool = False,
    ) -> list[Delivery]:
        """Take up to `limit` tasks, or none after `wait_s`.

        Args:
            whole: for a process with the app, which opens the stored payload itself.
        """

    async def answer(self, receipt: Receipt, verdict: Verdict) -> None:
        """Say how an attempt ended. Raises `StaleReceipt`."""

    async def extend(self, receipt: Receipt, visibility_s: float) -> int:
        """Give the consumer more time, and return until when, in microseconds.

        Raises `StaleReceipt`.
        """

    async def drop(self, consumer: str) -> None:
        """Take back all that this consumer has: it is gone."""


class Local:
    """The pools of this process."""

    def __init__(
        self,
        pools: Mapping[str, PullPool],
        *,
        worker: str,
        groups: Sequence[str],
        codec: Codec,
        key: bytes,
    ) -> None:
        self.queues = frozenset(pools)
        self.groups = frozenset(groups)
        self._pools = pools
        self._worker = worker
        self._codec = codec
        self._key = key

    async def take(
        self,
        group: str,
        queues: Sequence[str],
        *,
        limit: int,
        wait_s: float,
        visibility_s: float,
        consumer: str,
        names: frozenset[str] | None,
        whole: bool = False,
    ) -> list[Delivery]:
        """Take tasks; see `Source.take`.

        A task that cannot be read becomes a dead letter and is not delivered. The list may
        therefore be empty before `wait_s` is over.
        """
        found = await receive(
            [self._pools[queue] for queue in queues],
            group,
            limit=limit,
            wait_s=wait_s,
            visibility_s=visibility_s,
            consumer=consumer,
            names=names,
        )
        made = [self._deliver(pool, hold, whole=whole) for pool, hold in found]
        return [delivery for delivery in made if delivery is not None]

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
        group, shard_id, epoch, task_id, number = identity(attempt)
        expires_us = hold.started_us + LIFE_US
        receipt = Receipt(
            self._worker,
            record.queue,
            group,
            shard_id,
            epoch,
            task_id,
            number,
            hold.serial,
            expires_us,
        )
        return Delivery(attempt, payload, headers, seal(self._key, receipt), hold.until_us)
