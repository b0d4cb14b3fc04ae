"""`late serve`: a worker with the interfaces beside it, on one event loop.

At a stop the interfaces first say that nothing more will come, then take answers for as long as
what is out has grace, and close when all that was answered is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from late import config, events
from late.api import limits
from late.api.access import Access
from late.api.produce import Producer
from late.api.service import Service
from late.api.source import Local
from late.app import App
from late.config import WorkerConfig
from late.control import Control
from late.errors import ConfigError
from late.worker import Worker

if TYPE_CHECKING:
    from late.api.listen import HttpServer, Tls
    from late.api.rpc import RpcServer


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """Where and to whom the interfaces are offered. A port of None is not served; 0 takes any."""

    host: str = "127.0.0.1"
    http_port: int | None = 7280
    grpc_port: int | None = None
    auth: bool = False
    """Ask for tokens. Without, only this machine may be served."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    """Clients' certificates by this authority count, under the token of their name."""
    rate: float = limits.RATE

    def checked(self) -> Tls | None:
        """The certificate to serve with, if any.

        Raises:
            ConfigError: what is asked for is unsafe or does not fit together.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS takes both a certificate and its key")
        if self.tls_ca is not None and self.tls_cert is None:
            raise ConfigError("certificates of clients take TLS: give --tls-cert and --tls-key")
        if self.http_port is None and self.grpc_port is None:
            raise ConfigError("nothing to serve: give a port for HTTP or for gRPC")
        limits.check_bind(self.host, tls=self.tls_cert is not None, auth=self.auth)
        if self.tls_cert is None or self.tls_key is None:
            return None
        from late.api.listen import Tls

        return Tls(self.tls_cert, self.tls_key, self.tls_ca)


def run(
    app: App,
    listen: Listen,
    *,
    groups: Sequence[str] | None = None,
    target: str | None = None,
    **settings: Any,
) -> int:
    """As `late.worker.run`, with the interfaces."""
    configuration = config.load(**settings)
    chosen = tuple(groups or (app.group,))
    with contextlib.suppress(ImportError):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(app, listen, chosen, target, configuration))
    return asyncio.run(_serve(app, listen, chosen, target, configuration))


async def _serve(
    app: App,
    listen: Listen,
    groups: tuple[str, ...],
    target: str | None,
    configuration: WorkerConfig,
) -> int:
    server = Server(app, listen, groups=groups, target=target, settings=configuration)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.ask_to_stop)
    await server.start()
    return await server.wait()


class Server:
    """A worker and the interfaces to it, on the running event loop.

    Raises:
        ConfigError: `listen` asks for something unsafe; nothing was opened.
    """

    def __init__(
        self,
        app: App,
        listen: Listen,
        *,
        groups: Sequence[str] | None = None,
        target: str | None = None,
        settings: WorkerConfig | None = None,
    ) -> None:
        self._tls = listen.checked()
        self._listen = listen
        self._app = app
        self._groups = tuple(groups or (app.group,))
        self.worker = Worker(app, groups=self._groups, target=target, settings=settings)
        self._control = Control(app.url)
        self._producer = Producer(app, routed=app.routes)
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = False
        self.stopped = False
        self.http: HttpServer | None = None
        self.grpc: RpcServer | None = None

    async def start(self) -> None:
        """Start the worker, then listen.

        Raises:
            LateError: the worker does not start, a port is taken. Nothing runs then.
        """
        try:
            await self.worker.start()
        except BaseException:
            self._close()
            raise
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        listen, worker = self._listen, self.worker
        key = await asyncio.to_thread(self._control.receipt_key)
        access = Access(
            self._control.tokens if listen.auth else None,
            now_us=worker.clock.now_us,
            pace=limits.Pace(listen.rate),
        )
        await access.load()
        source = Local(
            worker.pulls.by_queue,
            worker=worker.id,
            groups=self._groups,
            codec=self._app.codec,
            key=key,
        )
        service = Service(
            self._producer,
            source,
            access,
            look=self._control.status,
            group=self._groups[0],
            key=key,
        )
        self._loops.append(asyncio.create_task(access.run(), name="late-tokens"))
        if self._app.max_backlog is not None:
            self._loops.append(asyncio.create_task(service.watch_backlog(), name="late-backlog"))
        if listen.http_port is not None:
            self.http = await self._serve_http(service, listen.http_port)
        if listen.grpc_port is not None:
            self.grpc = await self._serve_grpc(service, listen.grpc_port)

    async def _serve_http(self, service: Service, port: int) -> HttpServer:
        try:
            from late.api import http
            from late.api.listen import HttpServer
        except ModuleNotFoundError as error:
            raise ConfigError(
                "HTTP takes starlette and uvicorn: pip install 'late[serve]'"
            ) from error
        server = HttpServer(
            http.make(service, state=self._ready), self._listen.host, port, tls=self._tls
        )
        await server.start()
        self._tell("http", server.port)
        return server

    async def _serve_grpc(self, service: Service, port: int) -> RpcServer:
        try:
            from late.api.rpc import RpcServer
        except ModuleNotFoundError as error:
            raise ConfigError("gRPC takes grpcio: pip install 'late[grpc]'") from error
        server = RpcServer(service, self._listen.host, port, tls=self._tls)
        await server.start()
        self._tell("grpc", server.port)
        return server

    def _tell(self, protocol: str, port: int) -> None:
        scheme = f"{protocol}{'s' if self._tls else ''}"
        events.default.emit(events.API_SERVED, protocol=scheme, host=self._listen.host, port=port)

    def _ready(self) -> tuple[bool, str]:
        if self._stopping:
            return False, "it stops"
        trusted = self.worker.trusted
        return trusted, "" if trusted else "its heartbeat has no answer"

    def ask_to_stop(self) -> None:
        """As `Worker.ask_to_stop`."""
        self.worker.ask_to_stop()

    async def wait(self) -> int:
        """Serve until asked to stop, stop, and return the exit code."""
        await self.worker.stop_asked()
        self._drain()
        code = await self.worker.wait()
        await self._end()
        return code

    async def stop(self) -> None:
        """Stop in the order of the module's text."""
        self._drain()
        await self.worker.stop()
        await self._end()

    def _drain(self) -> None:
        self._stopping = True
        if self.grpc is not None:
            self.grpc.drain()

    async def _end(self) -> None:
        for server in (self.http, self.grpc):
            if server is not None:
                await server.stop()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._close()
        self.stopped = True

    def _close(self) -> None:
        self._producer.close()
        self._control.close()
