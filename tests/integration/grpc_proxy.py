"""A bad network before Spanner, on loopback: by call (`GrpcProxy`) and by byte (`Relay`).

`GrpcProxy` speaks gRPC: it forwards every method of the API as bytes, and a rule may answer in the
server's stead, hold a call back, or forward it and swallow the answer. `Relay` is below gRPC: it
can fall silent with its connections open, as a host that lost power does, or refuse them.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

import grpc
from google.cloud.spanner_v1.types import spanner as messages

_MESSAGES: dict[str, Any] = {
    "CreateSession": messages.CreateSessionRequest,
    "BatchCreateSessions": messages.BatchCreateSessionsRequest,
    "BeginTransaction": messages.BeginTransactionRequest,
    "Commit": messages.CommitRequest,
    "Rollback": messages.RollbackRequest,
    "ExecuteSql": messages.ExecuteSqlRequest,
    "ExecuteStreamingSql": messages.ExecuteSqlRequest,
    "ExecuteBatchDml": messages.ExecuteBatchDmlRequest,
    "StreamingRead": messages.ReadRequest,
}
_STREAMS = ("ExecuteStreamingSql", "StreamingRead")


class Rule(NamedTuple):
    """What happens to calls of `method`, for the next `times` of them."""

    method: str
    code: grpc.StatusCode | None = None
    """Answer with this."""
    forward: bool = False
    """Send the call on first, and throw its answer away."""
    hold: threading.Event | None = None
    """Wait for this first: a delay, or a black hole if it is never set."""
    hold_s: float = 0.0
    """Wait for this long first, counted from the call's arrival."""
    times: int = 1


class Heard(NamedTuple):
    """One call that came in."""

    method: str
    request: Any
    answers: list[bytes]
    """What went back; all of it once the caller has it."""


class GrpcProxy:
    """Forwards to `upstream`; `host` is the way in. A context manager.

    Args:
        decide: asked for the rule of each call (method, request) first, in the call's thread. Then
            nothing is remembered: such a proxy may live long.
        threads: most calls at a time.
    """

    def __init__(
        self,
        upstream: str,
        *,
        decide: Callable[[str, Any], Rule | None] | None = None,
        threads: int = 16,
    ) -> None:
        self._decide = decide
        self._upstream = grpc.insecure_channel(upstream)
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="proxy"), handlers=[_Handler(self)]
        )
        self.host = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._holds: set[threading.Event] = set()
        """What calls wait for: set at the end, so that no thread outlives the proxy."""
        self.heard: list[Heard] = []

    def add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)
            if rule.hold is not None:
                self._holds.add(rule.hold)

    def calls(self, method: str) -> list[Any]:
        """The requests of this method so far."""
        return [one.request for one in self.heard if one.method == method]

    def __enter__(self) -> GrpcProxy:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hold in self._holds:
            hold.set()
        self._server.stop(None).wait()
        self._upstream.close()

    def _rule(self, method: str, request: Any) -> Rule | None:
        if self._decide is not None:
            return self._decide(method, request)
        with self._lock:
            for index, rule in enumerate(self._rules):
                if rule.method == method:
                    left = rule._replace(times=rule.times - 1)
                    self._rules[index : index + 1] = [left] if left.times else []
                    return rule
        return None

    def serve(self, path: str, raw: bytes, context: Any) -> Iterator[bytes]:
        """All answers to one call; a unary one has one."""
        method = path.rpartition("/")[2]
        kind = _MESSAGES.get(method)
        answers: list[bytes] = []
        request = kind.deserialize(raw) if kind else raw
        if self._decide is None:
            self.heard.append(Heard(method, request, answers))
        rule = self._rule(method, request)
        if rule is not None and rule.hold is not None:
            with self._lock:
                self._holds.add(rule.hold)
            rule.hold.wait()
        if rule is not None:
            time.sleep(rule.hold_s)
        if rule is not None and rule.code is not None and not rule.forward:
            context.abort(rule.code, "from the proxy")
        metadata = [
            (key, value)
            for key, value in context.invocation_metadata()
            if key.startswith(("x-goog-", "google-"))
        ]
        try:
            if method in _STREAMS:
                answers += self._upstream.unary_stream(path)(raw, metadata=metadata)
            else:
                answers.append(self._upstream.unary_unary(path)(raw, metadata=metadata))
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata() or ())
            context.abort(error.code(), error.details())
        if rule is not None and rule.code is not None:
            context.abort(rule.code, "from the proxy, after the call")
        yield from answers


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, proxy: GrpcProxy) -> None:
        self._proxy = proxy

    def service(self, details: Any) -> Any:
        path = details.method
        if path.rpartition("/")[2] in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(
                lambda raw, context: self._proxy.serve(path, raw, context)
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda raw, context: next(self._proxy.serve(path, raw, context))
        )


class Relay:
    """Carries bytes to `upstream` and back; `host` is the way in. A context manager."""

    def __init__(self, upstream: str) -> None:
        name, _, port = upstream.partition(":")
        self._upstream = (name, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._passing = threading.Event()
        self._passing.set()
        self.opened = 0
        """Connections so far."""
        self.dropped = threading.Event()
        """A client has ended its connection, or it broke."""

    def silence(self) -> None:
        """Carry nothing from now on, and keep every connection open."""
        self._passing.clear()

    def refuse(self) -> None:
        """End every connection and take no other."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._passing.set()

    def restore(self) -> None:
        """Be a good network again, on the same port; connections from before are gone."""
        self.refuse()
        self._sockets.clear()
        self._listener = socket.create_server(("127.0.0.1", int(self.host.rpartition(":")[2])))
        self._start(self._accept)

    def __enter__(self) -> Relay:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
            except OSError:
                return
            self.opened += 1
            self._sockets += [client, server]
            self._start(lambda a=client, b=server: self._carry(a, b, self.dropped))
            self._start(lambda a=client, b=server: self._carry(b, a, None))

    def _carry(self, source: socket.socket, sink: socket.socket, end: Any) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if end is not None and not self._passing.is_set():
                    continue  # read and dropped, so that the end of the connection is seen
                self._passing.wait()
                sink.sendall(data)
        if end is not None:
            end.set()
        for one in (source, sink):
            one.close()

    def _start(self, run: Callable[[], None]) -> None:
        threading.Thread(target=run, daemon=True).start()
