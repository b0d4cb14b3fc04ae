"""gRPC channels to Spanner: traffic leaves a broken one at once, and every call is measured.

`ChannelPool` is a `grpc.Channel` over several real ones, each with a connection of its own. A call
goes to the healthy channel with the fewest calls in flight. A channel is avoided while gRPC
reports its connection as down, and for `AVOID_S` after it has answered UNAVAILABLE. If all are
bad, the least bad one is used, because an error from the network says more than one from us.

Keepalive: gRPC pings a connection that has a call in flight and has been silent for
`KEEPALIVE_TIME_S`, and drops it if no answer comes within `KEEPALIVE_TIMEOUT_S`; calls on it then
end with UNAVAILABLE. So a dead peer is noticed within 6 s; with the client's own settings it takes
120 s. Idle connections are not pinged: a server may close a connection that pings needlessly.

Only unary calls and server streams are served, because Spanner's API has no other.

Source: Uber's description of its Spanner gateway (handling of bad channels, keepalive).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from late import events
from late.store.spanner.grpc_calls import CountedStream, GrpcCall, Stamp, code_of

KEEPALIVE_TIME_S = 4.0
KEEPALIVE_TIMEOUT_S = 2.0
AVOID_S = 1.0
"""The time that a channel is avoided after UNAVAILABLE although its connection looks fine."""

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", int(KEEPALIVE_TIME_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    # The setting that decides: with keepalive's own alone, an unanswered ping may take 60 s.
    ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    # Channels with equal arguments would otherwise share one connection, and break together.
    ("grpc.use_local_subchannel_pool", 1),
    # A broken connection is tried again soon; gRPC's own cap is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]
"""Arguments of every channel of ours."""


class _Member:
    """One channel and its health."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.in_flight = 0
        self.down = False
        self.avoid_until = 0.0
        self._calls: dict[tuple[str, bool], Any] = {}
        # gRPC calls it in a thread of its own. `True`: connect now, and again whenever it breaks.
        channel.subscribe(self._changed, try_to_connect=True)

    def call(self, method: str, stream: bool) -> Any:
        """Return the callable for `method` over bytes, so that they can be counted."""
        found = self._calls.get((method, stream))
        if found is None:
            make = self.channel.unary_stream if stream else self.channel.unary_unary
            found = self._calls[method, stream] = make(method)
        return found

    def _changed(self, state: grpc.ChannelConnectivity) -> None:
        broken = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
        if state in broken:
            self.down = True
        elif state is grpc.ChannelConnectivity.READY:
            # Only that flag: gRPC may report the connection after the first answer over it, and if
            # that answer was UNAVAILABLE, the channel must be avoided for the whole time.
            self.down = False

    def unwatch(self) -> None:
        self.channel.unsubscribe(self._changed)


class ChannelPool(grpc.Channel):
    """Several channels as one. Safe to use from any thread.

    Args:
        channels: at least one; made with `OPTIONS`, and closed with the pool.
        stamp: put on every request.
        emitter: gets an event for every call (`late.events.RPC`).
    """

    def __init__(
        self,
        channels: Sequence[grpc.Channel],
        *,
        stamp: Stamp,
        emitter: events.Emitter = events.default,
    ) -> None:
        self._members = [_Member(channel) for channel in channels]
        self._turn = itertools.count()
        # Reentrant: the garbage collector may end a stream that was not read to its end, and it
        # runs wherever memory is allocated, also while this lock is held.
        self._lock = threading.RLock()
        self.stamp = stamp
        self.emitter = emitter

    def take(self) -> _Member:
        """Return the member for the next call; `give_back` it when the call has ended."""
        now = time.monotonic()
        turn = next(self._turn)
        count = len(self._members)
        with self._lock:
            index = min(
                range(count),
                key=lambda i: (
                    self._members[i].down,
                    self._members[i].avoid_until > now,
                    self._members[i].in_flight,
                    (i - turn) % count,
                ),
            )
            member = self._members[index]
            member.in_flight += 1
        return member

    def give_back(self, member: _Member, code: grpc.StatusCode) -> None:
        """Note that a call of this member has ended with `code`."""
        with self._lock:
            member.in_flight -= 1
            if code is grpc.StatusCode.UNAVAILABLE:
                member.avoid_until = time.monotonic() + AVOID_S

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _Unary(self, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _Stream(self, method, request_serializer, response_deserializer)

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{method}: Spanner has no client streams")

    stream_stream = stream_unary

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        self._members[0].channel.subscribe(callback, bool(try_to_connect))

    def unsubscribe(self, callback: Any) -> None:
        self._members[0].channel.unsubscribe(callback)

    def unwatch(self) -> None:
        """Follow the connections no more. gRPC hears of it within 0.2 s for each by itself, and to
        close a channel waits for that. So whoever closes several comes here with all of them first.
        """
        for member in self._members:
            member.unwatch()

    def close(self) -> None:
        """Close every channel; calls in flight end with CANCELLED. Calling it twice is fine."""
        self.unwatch()
        for member in self._members:
            member.channel.close()

    def __enter__(self) -> ChannelPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """One method of the API; each call goes through the best channel at that moment."""

    def __init__(
        self,
        pool: ChannelPool,
        method: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self._pool = pool
        self._method = method
        self._serialize = serializer or bytes
        self._deserialize = deserializer or bytes

    def _start(self, request: Any, metadata: Any) -> GrpcCall:
        self._pool.stamp.put(request)
        return GrpcCall(self._pool, self._method, request, self._serialize(request), metadata)


class _Unary(_Method, grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]
    def __call__(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return self.with_call(request, *args, **kwargs)[0]

    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        call = self._start(request, metadata)
        run = call.member.call(self._method, stream=False).with_call
        try:
            raw, answer = run(call.sent, timeout, metadata, *args, **kwargs)
        except BaseException as error:
            call.end(code_of(error))
            raise
        call.received = len(raw)
        call.end(grpc.StatusCode.OK)
        return self._deserialize(raw), answer

    def future(self, request: Any, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self._method}: the client has no use for futures")


class _Stream(_Method, grpc.UnaryStreamMultiCallable):  # type: ignore[type-arg]
    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        call = self._start(request, metadata)
        run = call.member.call(self._method, stream=True)
        try:
            answers = run(call.sent, timeout, metadata, *args, **kwargs)
        except BaseException as error:
            call.end(code_of(error))
            raise
        return CountedStream(call, answers, self._deserialize)
