"""`late.Consumer` executes the tasks of pulled queues in a process without a database.

    consumer = late.Consumer("127.0.0.1:7281", queues=["payments"])

    def work(task: late.PulledTask) -> None:
        charge(task.payload["trip_id"])

    consumer.run(work)          # until SIGTERM or SIGINT

A value that `work` returns or raises has the same meaning as in a handler: `late.Retry`,
`late.Snooze`, `late.Discard` and `late.Nack` are outcomes, and any other exception is a failed
attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc

from late.consumer.session import PulledTask, Session, Work
from late.errors import ConfigError, LateError
from late.v1 import queue_pb2, queue_pb2_grpc

__all__ = ["Consumer", "ConsumerRefused", "PulledTask"]

logger = logging.getLogger("late.consumer")

RECONNECT_S = (0.1, 10.0)
_OPTIONS = [
    ("grpc.max_receive_message_length", 80 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_FATAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)


class ConsumerRefused(LateError):
    """The server refuses this consumer, or its queues. Another try would not help."""


class Consumer:
    """Fetches tasks over gRPC, several at a time, and sends their outcomes.

    While a task runs, its visibility is extended. If this process dies or loses its connection, its
    tasks go to other consumers at once. A broken stream is opened again, with growing pauses.

    Args:
        at: host:port of `late serve`.
        queues: the queues whose tasks are fetched.
        names: the tasks that this consumer can run; all if it is empty.
        group: the consumer group; by default the server's.
        concurrency: the most tasks at the same time.
        token: the token that `late token create` printed.
        ca: file of the certificates to check the server's with. It turns TLS on.
        cert, key: files with this client's own certificate and its key.
        visibility_s: seconds for which a task belongs to this consumer without a sign of life.
        name: the name of this consumer for the server.

    Raises:
        ConfigError: a value is wrong, or a token would be sent to another machine without TLS.
    """

    def __init__(
        self,
        at: str,
        *,
        queues: Sequence[str],
        names: Sequence[str] = (),
        group: str = "",
        concurrency: int = 16,
        token: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        visibility_s: float = 30.0,
        name: str = "",
    ) -> None:
        if not queues or isinstance(queues, str):
            raise ConfigError("queues: a list of at least one queue")
        if not 1 <= concurrency <= 1_000:
            raise ConfigError(f"concurrency must be 1..1000, got {concurrency}")
        if not 1 <= visibility_s <= 43_200:
            raise ConfigError(f"visibility_s must be 1..43200, got {visibility_s}")
        if token is not None and ca is None and not at.startswith(("127.", "localhost", "[::1]")):
            raise ConfigError("a token goes to another machine over TLS only: give ca=")
        self._at = at
        self._queues = list(queues)
        self._names = list(names)
        self._group = group
        self._concurrency = concurrency
        self._token = token
        self._files = (ca, key, cert)
        self._visibility_s = visibility_s
        self._name = name
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.connected = 0
        """The number of streams that have been opened so far."""

    def run(self, work: Work) -> None:
        """Work until SIGTERM or SIGINT. Running tasks may end then."""
        asyncio.run(self._run(work))

    async def _run(self, work: Work) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        await self.serve(work)

    def stop(self) -> None:
        """Fetch no more tasks. `run` and `serve` return when the running tasks have ended.

        Any thread may call it.
        """
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def serve(self, work: Work) -> None:
        """Work on the running event loop until `stop`. A plain `def` as `work` runs in threads.

        Raises:
            ConsumerRefused: the server refuses this consumer, and would do so again.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="late-consumer")
        pause_s = RECONNECT_S[0]
        try:
            while not self._stop.is_set():
                before = self.connected
                try:
                    await self._session(work, threads)
                except grpc.aio.AioRpcError as error:
                    if error.code() in _FATAL:
                        raise ConsumerRefused(f"{error.code().name}: {error.details()}") from None
                    why = " ".join((error.details() or "").split())[:300]
                    logger.warning("stream to %s broke: %s: %s", self._at, error.code().name, why)
                pause_s = RECONNECT_S[0] if self.connected > before else pause_s
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s * random.uniform(0.5, 1.0)):
                        await self._stop.wait()
                pause_s = min(2 * pause_s, RECONNECT_S[1])
        finally:
            threads.shutdown(wait=False)

    async def _session(self, work: Work, threads: ThreadPoolExecutor) -> None:
        metadata = () if self._token is None else (("authorization", f"Bearer {self._token}"),)
        async with self._channel() as channel:
            call = queue_pb2_grpc.QueueStub(channel).Consume(metadata=metadata)
            subscribe = queue_pb2.Subscribe(
                group=self._group, queues=self._queues, names=self._names, consumer=self._name
            )
            subscribe.visibility.FromMicroseconds(round(self._visibility_s * 1_000_000))
            await call.write(queue_pb2.ConsumeRequest(subscribe=subscribe))
            session = Session(call, work, threads, self._visibility_s)
            await session.run(self._concurrency, self._opened, self._stop)

    def _opened(self) -> None:
        self.connected += 1

    def _channel(self) -> grpc.aio.Channel:
        if self._files[0] is None:
            return grpc.aio.insecure_channel(self._at, options=_OPTIONS)
        try:
            ca, key, cert = (None if path is None else Path(path).read_bytes()
                             for path in self._files)  # fmt: skip
        except OSError as error:
            raise ConfigError(f"TLS: {error}") from None
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
        return grpc.aio.secure_channel(self._at, credentials, options=_OPTIONS)
