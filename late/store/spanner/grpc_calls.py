"""One call to Spanner's API: the priority and tag that it gets, and its event at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import grpc

from late import events
from late.observability.conflicts import role_of

_REQUEST_ID = "x-goog-spanner-request-id"


class Stamp(NamedTuple):
    """The priority and tag of every request that its caller has not set itself."""

    priority: int
    """`RequestOptions.Priority`."""
    tag: str
    """The request tag of reads and queries, for Spanner's own statistics."""

    def put(self, request: Any) -> None:
        """Fill in the unset fields of `request`, a message of Spanner's API. Idempotent."""
        message = getattr(request, "_pb", request)
        if "request_options" not in message.DESCRIPTOR.fields_by_name:
            return
        options = message.request_options
        if not options.priority:
            low = role_of(options.transaction_tag) == "background"
            options.priority = _LOW if low else self.priority
        if not options.request_tag and type(message).__name__ in _TAGGED:
            options.request_tag = self.tag


_LOW = 1  # RequestOptions.Priority.PRIORITY_LOW
# A commit is tagged by its transaction: the server refuses a request tag there.
_TAGGED = ("ReadRequest", "ExecuteSqlRequest", "ExecuteBatchDmlRequest")


class CallPool(Protocol):
    """The part of `ChannelPool` that a call uses."""

    @property
    def stamp(self) -> Stamp: ...
    @property
    def emitter(self) -> events.Emitter: ...
    def take(self) -> Any:
        """Return a channel for one call."""

    def give_back(self, member: Any, code: grpc.StatusCode) -> None:
        """The call has ended."""


class CountedStream:
    """A server stream that counts received bytes and passes everything else on."""

    def __init__(self, call: GrpcCall, answers: Any, deserialize: Callable[[bytes], Any]) -> None:
        self._call = call
        self._answers = answers
        self._deserialize = deserialize

        def ended() -> None:
            # In gRPC's thread: the reader may still have to count the last answer.
            code = answers.code() or grpc.StatusCode.UNKNOWN
            if code is not grpc.StatusCode.OK:
                call.end(code)

        answers.add_callback(ended)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            raw = next(self._answers)
        except StopIteration:
            self._call.end(grpc.StatusCode.OK)
            raise
        except BaseException as error:
            self._call.end(code_of(error))
            raise
        self._call.received += len(raw)
        return self._deserialize(raw)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answers, name)

    def __del__(self) -> None:
        # The reader stopped before the end: the channel has one call fewer.
        self._call.end(grpc.StatusCode.OK)


class GrpcCall:
    """One attempt of one call: its channel, its sizes and its event at the end."""

    _last = threading.local()

    def __init__(
        self, pool: CallPool, method: str, request: Any, sent: bytes, metadata: Any
    ) -> None:
        self.member: Any = pool.take()
        self.sent = sent
        self.received = 0
        self.retries = self._count(method, request, metadata)
        self._pool = pool
        self._method = method.rpartition("/")[2]
        self._started = time.monotonic()
        self._ended = threading.Lock()

    def _count(self, method: str, request: Any, metadata: Any) -> int:
        """Return how often this thread has sent the same request before.

        The client repeats either below the request id (the same message once more) or above it
        (the same id with its last part, the attempt, raised).
        """
        identity = dict(metadata or ()).get(_REQUEST_ID, "")
        stem, _, attempt = identity.rpartition(".")
        key, before = getattr(self._last, "call", (None, 0))
        mine = (method, stem or id(request))
        repeats = before + 1 if mine == key else 0
        if attempt.isdigit():
            repeats = max(repeats, int(attempt) - 1)
        self._last.call = (mine, repeats)
        return repeats

    def end(self, code: grpc.StatusCode) -> None:
        """Report the end, once: the reader and gRPC's thread may both see it."""
        if not self._ended.acquire(blocking=False):
            return
        self._pool.give_back(self.member, code)
        self._pool.emitter.emit(
            events.RPC,
            duration_s=time.monotonic() - self._started,
            sent_bytes=len(self.sent),
            received_bytes=self.received,
            retries=self.retries,
            method=self._method,
            code=code.name,
            role=self._pool.stamp.tag,
        )


def code_of(error: BaseException) -> grpc.StatusCode:
    code = getattr(error, "code", None)
    return code() if callable(code) else grpc.StatusCode.UNKNOWN
