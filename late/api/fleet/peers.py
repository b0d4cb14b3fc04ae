"""The private protocol between processes: pull tasks of shards that another process has.

It uses the same gRPC port, with msgpack. Both ends have one version of the protocol, or the call
fails. A process that knows one of the deployment's keys is a peer: they are in its database, where
workers may read them and viewers may not.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec

from late.api.access.peer_keys import Keyring
from late.api.errors import Unavailable
from late.api.grpc.calls import receive_or_abort, service
from late.api.limits import MESSAGE_BYTES, WAIT_S_MAX
from late.api.pull.deliveries import Delivery, Source, TakeRequest
from late.api.pull.receipts import Receipt, StaleReceipt
from late.handler.classify import Verdict

T = TypeVar("T")

SERVICE = "late.internal.Peer1"
"""The number is the protocol's version. A peer of another version does not have this service."""
CALL_S = 5.0
_OPTIONS = [
    ("grpc.max_receive_message_length", 16 * MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


class Offer(msgspec.Struct, frozen=True):
    """The queues and groups that can be pulled from a process."""

    queues: frozenset[str]
    groups: frozenset[str]


class AnswerRequest(msgspec.Struct, frozen=True):
    """An answer, or without a verdict an extension by `extend_s`."""

    receipt: Receipt
    verdict: Verdict | None = None
    extend_s: float = 0.0


class AnswerReply(msgspec.Struct, frozen=True):
    """The result of an `AnswerRequest`."""

    stale: bool = False
    until_us: int = 0


class Empty(msgspec.Struct, frozen=True):
    """A message without contents."""


def password(key: bytes) -> str:
    """The password that a peer shows, made from a key of the deployment."""
    return hmac.digest(key, b"late.peer.1", "sha256").hex()


def handler(
    source: Source, keys: Keyring, admitted: Callable[[str], None]
) -> grpc.GenericRpcHandler:
    """Make the gRPC handler that serves `source` to peers.

    Args:
        admitted: called with the other end of each call of a peer.
    """

    def method(kind: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
        decode = msgspec.msgpack.Decoder(kind).decode

        async def call(_: Any, context: Any) -> Any:
            shown = str(dict(context.invocation_metadata() or ()).get("late-peer", ""))
            if not _opens(keys, shown):
                await keys.renew()
            if not _opens(keys, shown):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a peer")
            admitted(context.peer())
            request = await receive_or_abort(context, decode)
            found = await work(request)
            if isinstance(request, TakeRequest) and not _opens(keys, shown):
                # Its key was removed while it waited for tasks.
                await source.drop(request.consumer)
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a peer")
            return found

        return call, msgspec.msgpack.encode

    async def about(_: Empty) -> Offer:
        return Offer(source.queues, source.groups)

    async def take(ask: TakeRequest) -> list[Delivery]:
        asked = msgspec.structs.replace(ask, wait_s=min(ask.wait_s, WAIT_S_MAX))
        found = await source.take(asked)
        return found if ask.whole else [_light(delivery) for delivery in found]

    async def say(said: AnswerRequest) -> AnswerReply:
        try:
            if said.verdict is None:
                return AnswerReply(until_us=await source.extend(said.receipt, said.extend_s))
            await source.answer(said.receipt, said.verdict)
        except StaleReceipt:
            return AnswerReply(stale=True)
        return AnswerReply()

    async def drop(consumer: str) -> Empty:
        await source.drop(consumer)
        return Empty()

    methods = {
        "About": method(Empty, about),
        "Take": method(TakeRequest, take),
        "Say": method(AnswerRequest, say),
        "Drop": method(str, drop),
    }
    return service(SERVICE, methods)


def _opens(keys: Keyring, shown: str) -> bool:
    """Tell whether this is the password of a key that is valid now."""
    return any(hmac.compare_digest(shown.encode(), password(k).encode()) for k in keys.accepted)


def _light(delivery: Delivery) -> Delivery:
    """Return the delivery without the stored payload; it still has the opened one."""
    record = msgspec.structs.replace(delivery.attempt.record, payload=b"")
    attempt = msgspec.structs.replace(delivery.attempt, record=record)
    return msgspec.structs.replace(delivery, attempt=attempt)


class Peer:
    """A client of one other process."""

    def __init__(
        self, worker_id: str, address: str, keys: Keyring, tls: Sequence[str | None] | None
    ) -> None:
        """
        Args:
            tls: this process's files of the authority (None: the machine's default), key and
                certificate; None without TLS.
        """
        self.worker_id = worker_id
        self.address = address
        self.about: Offer | None = None
        self._keys = keys
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            files = [None if path is None else Path(path).read_bytes() for path in tls]
            credentials = grpc.ssl_channel_credentials(*files)
            self._channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        self._take = self._method("Take", list[Delivery])
        self._say = self._method("Say", AnswerReply)
        self._drop = self._method("Drop", Empty)
        self._about = self._method("About", Offer)

    def _method(self, name: str, kind: Any) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=msgspec.msgpack.encode,
            response_deserializer=msgspec.msgpack.Decoder(kind).decode,
        )

    async def describe(self) -> None:
        """Ask for its queues and groups; raises `Unavailable`."""
        self.about = await self._call(self._about, Empty(), CALL_S)

    async def take(self, ask: TakeRequest) -> list[Delivery]:
        """Take tasks; see `Source.take`. Raises `Unavailable`."""
        found: list[Delivery] = await self._call(self._take, ask, ask.wait_s + CALL_S)
        return found

    async def say(self, said: AnswerRequest) -> int:
        """Answer or extend; see `Source`. Raises `Unavailable`, `StaleReceipt`."""
        heard: AnswerReply = await self._call(self._say, said, CALL_S)
        if heard.stale:
            raise StaleReceipt("stale receipt")
        return heard.until_us

    async def drop(self, consumer: str) -> None:
        """Take a consumer's tasks back; see `Source.drop`. Raises `Unavailable`."""
        await self._call(self._drop, consumer, CALL_S)

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, method: Any, value: Any, limit_s: float) -> Any:
        key = self._keys.current
        try:
            try:
                return await self._shown(key, method, value, limit_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise
                await self._keys.renew()
                if self._keys.current == key:
                    raise
                return await self._shown(self._keys.current, method, value, limit_s)
        except grpc.aio.AioRpcError as error:
            why = error.code().name
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody has cancelled this: gRPC says so of a call whose channel was closed under it.
            why = "its channel was closed"
        text = f"a process of this deployment cannot be reached: {self.address}: {why}"
        raise Unavailable(text)

    @staticmethod
    async def _shown(key: bytes, method: Any, value: Any, limit_s: float) -> Any:
        return await method(value, timeout=limit_s, metadata=(("late-peer", password(key)),))
