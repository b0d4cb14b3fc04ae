"""The pulled tasks of all processes of a deployment: a consumer never sees shards.

A request waits at every process that has its queue, and the first one with a task wins. The other
calls are cancelled at once. Tasks that those processes hand out at the same moment are taken back,
which costs no attempt. To find them, each request has its own consumer name there: the consumer's,
`~`, and a number.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Sequence

import msgspec

from late.api.access.peer_keys import Keyring
from late.api.errors import Unavailable
from late.api.fleet.peers import AnswerRequest, Peer
from late.api.pull.deliveries import Delivery, Local, TakeRequest
from late.api.pull.receipts import Receipt, StaleReceipt
from late.concurrency import in_thread
from late.control.workers import Endpoint
from late.handler.classify import Verdict
from late.worker.background import BackgroundJob

logger = logging.getLogger("late.api")

ROUND_S = 2.0
"""Seconds that a request waits at the known processes, before it uses the current list of them."""
ANSWER_S = 1.0
"""Seconds by which an empty answer may come later than that."""
LOOK_EVERY_S = 1.0
"""A new process is found after about this time; a dead one is dropped when its heartbeat ends."""


class Fleet:
    """A `Source` of the tasks of this process and of all others.

    Args:
        local: the pools of this process; None if it has no shards.
        look: returns all endpoints, with this process's own; blocks, and is called in a thread.
        tls: see `Peer`.
    """

    def __init__(
        self,
        local: Local | None,
        look: Callable[[], Sequence[Endpoint]],
        *,
        me: str,
        keys: Keyring,
        tls: Sequence[str | None] | None,
    ) -> None:
        self._local = local
        self._look = look
        self._me = me
        self._keys = keys
        self._tls = tls
        self._peers: dict[str, Peer] = {}
        self._gone: list[Peer] = []
        self._numbers = itertools.count(1)
        self._dropping: set[asyncio.Task[None]] = set()
        self._prefix = f"{random.getrandbits(32):08x}"

    @property
    def queues(self) -> frozenset[str]:
        mine = self._local.queues if self._local is not None else frozenset[str]()
        return mine.union(*(peer.about.queues for peer in self._peers.values() if peer.about))

    @property
    def groups(self) -> frozenset[str]:
        mine = self._local.groups if self._local is not None else frozenset[str]()
        return mine.union(*(peer.about.groups for peer in self._peers.values() if peer.about))

    # -- processes -------------------------------------------------------------------------------

    async def look(self) -> None:
        """Find the other processes. Raises `StoreError`."""
        found = {e.worker_id: e for e in await in_thread(self._look)}
        found.pop(self._me, None)
        for worker_id in self._peers.keys() - found.keys():
            self._gone.append(self._peers.pop(worker_id))
        while self._gone:  # one is removed only when it is closed: the close may be cancelled
            await self._gone[-1].close()
            self._gone.pop()
        for worker_id in found.keys() - self._peers.keys():
            address = found[worker_id].address
            self._peers[worker_id] = Peer(worker_id, address, self._keys, self._tls)
        for peer in list(self._peers.values()):
            try:
                await peer.describe()
            except Unavailable as away:
                peer.about = None  # not asked for tasks until it answers
                logger.warning("%s", away)

    def job(self) -> BackgroundJob:
        """Make the job that looks again and again."""
        return BackgroundJob(name="fleet", run=self.look, period_s=LOOK_EVERY_S)

    async def close(self) -> None:
        """Close the connections to other processes.

        A channel that is not closed on its loop would keep the process from ending.
        """
        for task in list(self._dropping):
            task.cancel()
        await asyncio.gather(*self._dropping, return_exceptions=True)
        for peer in (*self._peers.values(), *self._gone):
            await peer.close()

    # -- tasks -----------------------------------------------------------------------------------

    async def take(self, ask: TakeRequest) -> list[Delivery]:
        """Take tasks; see `Source.take`. If several processes have tasks, each gives a share."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + ask.wait_s
        while True:
            wait_s = min(max(0.0, ends - loop.time()), ROUND_S)
            found = await self._round(msgspec.structs.replace(ask, wait_s=wait_s))
            if found or loop.time() >= ends:
                return found

    async def _round(self, ask: TakeRequest) -> list[Delivery]:
        """Ask all known processes once."""
        label = f"{ask.consumer}~{self._prefix}{next(self._numbers)}"
        limit, wanted = ask.limit, set(ask.queues)
        peers = [
            peer
            for peer in self._peers.values()
            if peer.about and ask.group in peer.about.groups and wanted & peer.about.queues
        ]
        share = max(1, limit // (len(peers) + (self._local is not None) or 1))
        ask = msgspec.structs.replace(ask, limit=share, consumer=label)
        asked: dict[asyncio.Task[list[Delivery]], Peer | None] = {
            asyncio.ensure_future(peer.take(ask)): peer for peer in peers
        }
        if self._local is not None and ask.group in self._local.groups:
            asked[asyncio.ensure_future(self._local.take(ask))] = None
        taken: list[Delivery] = []
        try:
            await _first(asked, ask.wait_s)
        except asyncio.CancelledError:
            limit = 0
            raise
        finally:
            for task in asked:
                task.cancel()
            results = await asyncio.gather(*asked, return_exceptions=True)
            for peer, result in zip(asked.values(), results, strict=True):
                if isinstance(result, list) and len(taken) + len(result) <= limit:
                    taken += result
                elif not isinstance(result, Unavailable):
                    self._give_back(peer, label)
        return taken

    async def answer(self, receipt: Receipt, verdict: Verdict) -> None:
        if self._local is not None and receipt.worker == self._me:
            await self._local.answer(receipt, verdict)
        else:
            await self._owner(receipt).say(AnswerRequest(receipt, verdict))

    async def extend(self, receipt: Receipt, visibility_s: float) -> int:
        if self._local is not None and receipt.worker == self._me:
            return await self._local.extend(receipt, visibility_s)
        return await self._owner(receipt).say(AnswerRequest(receipt, extend_s=visibility_s))

    def _owner(self, receipt: Receipt) -> Peer:
        peer = self._peers.get(receipt.worker)
        if peer is None:
            raise StaleReceipt("stale receipt")  # its process is gone, and its shards with it
        return peer

    async def drop(self, consumer: str) -> None:
        for peer in (*self._peers.values(), None):
            self._give_back(peer, consumer)

    def _give_back(self, peer: Peer | None, consumer: str) -> None:
        """Drop in the background: the caller must not wait for a peer that may be gone."""
        task = asyncio.ensure_future(self._drop(peer, consumer))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _drop(self, peer: Peer | None, consumer: str) -> None:
        try:
            if peer is not None:
                await peer.drop(consumer)
            elif self._local is not None:
                await self._local.drop(consumer)
        except Unavailable as away:
            logger.warning("%s", away)  # the task comes back when its visibility ends


async def _first(asked: dict[asyncio.Task[list[Delivery]], Peer | None], wait_s: float) -> None:
    """Wait until one of them has a task, or none can have one any more."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait_s
    left = set(asked)
    while left and (rest := ends + ANSWER_S - loop.time()) > 0:
        done, left = await asyncio.wait(left, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        if any(task.exception() is None and task.result() for task in done):
            return
    # If no process can be reached, the caller asks again at once: this is its pause.
    if (rest := ends - loop.time()) > 0:
        await asyncio.sleep(min(rest, 0.2))
