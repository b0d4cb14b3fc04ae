"""The operations of all interfaces, written once: HTTP and gRPC only translate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from late.api.access.auth import Access, demand
from late.api.access.peer_keys import Keyring
from late.api.errors import BadRequest, Forbidden, NotFound
from late.api.limits import CREDIT_MAX
from late.api.producer import Producer
from late.api.pull.deliveries import Delivery, Source, TakeRequest
from late.api.pull.receipts import Receipt, UnknownReceipt
from late.api.schemas import Accepted, Put, QueueStats
from late.concurrency import in_thread
from late.control.views import Count, Status
from late.handler.classify import Verdict
from late.model import validation as validate
from late.model.access.rights import Caller
from late.worker.background import BackgroundJob

STATUS_KEPT_S = 1.0
"""One read of the database serves all callers within this time."""


class Service:
    """Enqueue, receive, answer, look.

    Args:
        look: returns the state of all queues; blocks, and is called in a thread.
        group: the group of a request that names none.
        pulled: queues that are known to be pulled, even while no process has them.
    """

    def __init__(
        self,
        producer: Producer,
        source: Source,
        access: Access,
        *,
        look: Callable[[], Status],
        group: str,
        keys: Keyring,
        pulled: Collection[str] = (),
    ) -> None:
        self.access = access
        access.on_end = self._let_go
        self._producer = producer
        self._source = source
        self._look = look
        self._group = group
        self._pulled = frozenset(pulled)
        self._keys = keys
        self._looking = asyncio.Lock()
        self._looked: tuple[float, Status] | None = None

    async def put(self, caller: Caller, puts: Sequence[Put]) -> list[Accepted]:
        """Enqueue all or none. Keys are those of the queue unless the caller is for all queues.

        Raises:
            Forbidden: one of the queues is not for this caller.
            InvalidTask, QueueFull, UnknownTask, StoreError: see `Producer.put`.
        """
        demand(caller, "enqueue")
        for put in puts:
            demand(caller, "enqueue", self._producer.queue_of(put))
        return await self._producer.put(puts, shared_keys=caller.may_all("enqueue")) if puts else []

    async def take(self, caller: Caller, ask: TakeRequest) -> list[Delivery]:
        """Take tasks of these queues; none if the wait is over.

        Raises:
            NotFound: a queue cannot be pulled here, or there is no such group.
            Forbidden, BadRequest, InvalidName.
            Unauthenticated: the token has ended meanwhile.
        """
        group = self.group(ask.group)
        self.check_asked(caller, ask.queues, ask.names)
        # Callers with one token can take back each other's lost tasks, and nobody else can.
        mine = ask.consumer.replace("~", "-")  # the fleet uses "~" in its own names
        label = f"{caller.name}/{mine}" if ask.consumer else caller.name
        limit = min(ask.limit, CREDIT_MAX)
        found = await self._source.take(
            msgspec.structs.replace(ask, group=group, limit=limit, consumer=label)
        )
        # A service has its next JWT before this one ends, and answers with it for what it has.
        if not self.access.holds(caller) and not caller.outside:
            await self._let_go(caller.name)
        self.access.check(caller)
        return found

    def group(self, name: str | None) -> str:
        """The group of that name, or the default one; raises `InvalidName` or `NotFound`."""
        name = validate.name(name or self._group, "group")
        if name not in self._source.groups and name != self._group:
            raise NotFound(f"no group {name[:128]!r} here")
        return name

    def check_asked(
        self, caller: Caller, queues: Sequence[str], names: Collection[str] | None
    ) -> None:
        """Raise an error unless the caller may take from all of these, and these are names."""
        for each in names or ():
            validate.name(each, "name")
        if not queues:
            raise BadRequest("name at least one queue")
        for queue in queues:
            validate.name(queue, "queue")
            demand(caller, "consume", queue)
            if queue not in self._source.queues and queue not in self._pulled:
                raise NotFound(f"the queue {queue!r} cannot be pulled here")

    async def answer(self, caller: Caller, receipt: str, verdict: Verdict) -> None:
        """Record how an attempt ended.

        Raises:
            UnknownReceipt: the receipt is not of this deployment, or its queue is not for this
                caller.
            StaleReceipt: the task may be executed again, or has been.
        """
        await self._source.answer(await self._mine(caller, receipt), verdict)

    async def extend(self, caller: Caller, receipt: str, visibility_s: float) -> int:
        """Give the consumer more time; return until when, in microseconds.

        Raises the same errors as `answer`.
        """
        return await self._source.extend(await self._mine(caller, receipt), visibility_s)

    async def drop(self, caller: Caller, consumer: str) -> None:
        """Give the tasks of a broken stream to others."""
        await self._source.drop(f"{caller.name}/{consumer.replace('~', '-')}")

    async def _let_go(self, token: str) -> None:
        """Give the tasks of all consumers of a token to others: it can answer for none of them."""
        await self._source.drop(f"{token}/")

    async def _mine(self, caller: Caller, text: str) -> Receipt:
        demand(caller, "consume")
        receipt = await self._keys.unseal(text)
        if not caller.may("consume", receipt.queue):
            raise UnknownReceipt("unknown receipt")  # the same as for a forged one
        return receipt

    async def stats(
        self, caller: Caller, queues: Sequence[str] = (), group: str | None = None
    ) -> list[QueueStats]:
        """Count waiting and running tasks of the named queues, or of all that the caller may see.

        Raises:
            Forbidden: one of the named queues is not for this caller.
            InvalidName: the name of a queue or of the group is none.
        """
        group = validate.name(group or self._group, "group")
        for queue in queues:
            validate.name(queue, "queue")
            if not caller.sees(queue):
                raise Forbidden(f"this token is not for the queue {queue!r}")
        status = await self._status()
        found = {
            each.queue: QueueStats(
                queue=each.queue,
                group=group,
                ready=each.depth.n,
                running=each.in_flight.n,
                parked=each.parked.n,
                dead=each.dead.n,
                oldest_s=each.oldest_age_s,
                capped=_capped(each.depth, each.in_flight, each.parked, each.dead),
            )
            for each in status.queues
            if each.group == group and caller.sees(each.queue)
        }
        if not queues:
            return [found[queue] for queue in sorted(found)]
        return [found.get(queue) or _nothing(queue, group) for queue in queues]

    async def _status(self) -> Status:
        async with self._looking:
            if self._looked is None or time.monotonic() - self._looked[0] > STATUS_KEPT_S:
                status = await in_thread(self._look)
                self._looked = (time.monotonic(), status)
                for each in status.queues:
                    if each.group == self._group:
                        self._producer.observe(each.queue, each.depth.n + each.in_flight.n)
            return self._looked[1]

    def backlog_job(self) -> BackgroundJob:
        """Make the job that publishes the depths, for `max_backlog`.

        If it fails, the last depths expire, and the queues have no bound.
        """
        return BackgroundJob(
            name="backlog", run=self._status, period_s=2 * STATUS_KEPT_S, first_s=0.0
        )


def _capped(*counts: Count) -> bool:
    return any(count.capped for count in counts)


def _nothing(queue: str, group: str) -> QueueStats:
    return QueueStats(
        queue=queue, group=group, ready=0, running=0, parked=0, dead=0, oldest_s=None, capped=False
    )
