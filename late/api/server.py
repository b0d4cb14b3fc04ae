"""`late serve`: a worker with the interfaces beside it, on one event loop.

At a stop the interfaces first say that nothing more will come. They then take answers until the
grace of the running attempts is over, and close when all answers are recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from late import config, events
from late.api import limits
from late.api.auth import Access
from late.api.deliveries import Local
from late.api.producer import Producer
from late.api.service import Service
from late.api.settings import INTERFACES, ServeSettings
from late.api.web_auth import Gate
from late.app.app import App
from late.clock import DatabaseClock
from late.concurrency import in_thread
from late.config import WorkerConfig
from late.control import Control
from late.errors import ConfigError, StoreError
from late.model.task import PULL
from late.observability import metrics
from late.worker.assembly import as_pulled, policies_of, run_process, run_until_signal
from late.worker.worker import Worker

if TYPE_CHECKING:
    from late.api.fleet.executor import Executor
    from late.api.fleet.fleet import Fleet
    from late.api.grpc.server import RpcServer
    from late.api.http.uvicorn_server import HttpServer
    from late.web.routes import OperatorPage


ANNOUNCE_EVERY_S = 2.0


def run(
    app: App,
    listen: ServeSettings,
    *,
    groups: Sequence[str] | None = None,
    target: str | None = None,
    **settings: Any,
) -> int:
    """Run a worker with the interfaces; see `late.worker.worker.run`."""

    async def serve(chosen: tuple[str, ...], configuration: WorkerConfig) -> int:
        server = Server(app, listen, groups=chosen, target=target, settings=configuration)
        return await run_until_signal(server)

    return run_process(app, serve, groups, settings)


class Server:
    """A worker and the interfaces to it, or the interfaces alone, on the running event loop.

    Raises:
        ConfigError: `listen` asks for something unsafe; nothing was opened.
    """

    def __init__(
        self,
        app: App,
        listen: ServeSettings,
        *,
        groups: Sequence[str] | None = None,
        target: str | None = None,
        settings: WorkerConfig | None = None,
    ) -> None:
        listen.check_app(app)
        self._tls = listen.checked()
        self._listen = listen
        self._app = app
        self._groups = tuple(groups or (app.group,))
        self.worker: Worker | None = None
        if "tail" in listen.roles:
            policies = policies_of(app)
            if "dispatch" not in listen.roles:
                policies = as_pulled(policies)
            self.worker = Worker(
                app, groups=self._groups, target=target, settings=settings, policies=policies
            )
            self.worker.telemetry.asked = True
        self._settings = settings or config.load()
        self._target = target
        self._executor: Executor | None = None
        self._clock = DatabaseClock() if self.worker is None else self.worker.clock
        self._control = Control(app.url, alarm_s=self._settings.lag_alarm_s)
        self._producer = Producer(app, routed=app.routes)
        self._counted = metrics.Registry()
        """The metrics of a process without a worker."""
        self._unfollow: Callable[[], None] = lambda: None
        if self.worker is None:
            self._unfollow = metrics.follow(events.default, self._counted)
        self._loops: list[asyncio.Task[None]] = []
        self._peers: Fleet | None = None
        self._stop_asked = asyncio.Event()
        self._stopping = False
        self.stopped = False
        self.page: OperatorPage | None = None
        self.http: HttpServer | None = None
        self.grpc: RpcServer | None = None

    async def start(self) -> None:
        """Start the worker, then listen.

        Raises:
            LateError: the worker does not start, or a port is taken. Nothing runs then.
        """
        try:
            if self.worker is not None:
                await self.worker.start()
            else:
                await self._look_at_clock()
        except BaseException:
            self._close()
            raise
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        listen, control = self._listen, self._control
        key = await in_thread(control.tokens.receipt_key)
        local = self._local(key)
        fleet = self._peers = self._fleet(local, key)
        if fleet is None and local is None and "api" in listen.roles:
            raise ConfigError("without shards tasks come from other processes: that takes gRPC, "
                              "pip install 'late[grpc]'")  # fmt: skip
        service = None
        access = await self._access()
        if "api" in listen.roles:
            await self._producer.look(control)
            self._begin("knobs", self._producer.follow(control))
            source: Any = fleet or local
            service = Service(
                self._producer,
                source,
                access,
                look=control.status.read,
                group=self._groups[0],
                key=key,
                pulled=[q for q, policy in self._app.routes.items() if policy.target == PULL],
            )
        if fleet is not None:
            await fleet.look()
            self._begin("fleet", fleet.run())
            await self._serve_grpc(service, local, key)
            if "dispatch" in listen.roles and self.worker is None:
                await self._execute(fleet, key)
        if service is not None and self._app.max_backlog is not None:
            self._begin("backlog", service.watch_backlog())
        if listen.http_port is not None and INTERFACES & set(listen.roles):
            self.http = await self._serve_http(service, access, key, listen.http_port)

    async def _access(self) -> Access:
        access = Access(
            self._control.tokens.all if self._listen.auth else None,
            now_us=self._clock.now_us,
            pace=limits.Pace(self._listen.rate),
        )
        if INTERFACES & set(self._listen.roles):
            await access.load()
            self._begin("tokens", access.run())
        return access

    async def _execute(self, fleet: Fleet, key: bytes) -> None:
        from late.api.fleet.executor import Executor

        self._executor = Executor(
            self._app,
            fleet,
            key=key,
            groups=self._groups,
            settings=self._settings,
            now_us=self._clock.now_us,
            target=self._target,
        )
        await self._executor.start()

    def _local(self, key: bytes) -> Local | None:
        worker = self.worker
        if worker is None:
            return None
        return Local(
            worker.pulls.by_queue,
            worker=worker.id,
            groups=self._groups,
            codec=self._app.codec,
            key=key,
        )

    def _fleet(self, local: Local | None, key: bytes) -> Fleet | None:
        """Make the fleet if gRPC is installed. The page alone needs no other process."""
        if set(self._listen.roles) == {"web"}:
            return None
        try:
            from late.api.fleet.fleet import Fleet
        except ModuleNotFoundError:
            return None
        listen = self._listen
        tls = None if self._tls is None else (listen.tls_ca, listen.tls_key, listen.tls_cert)
        me = "" if self.worker is None else self.worker.id
        return Fleet(local, self._control.endpoints.all, me=me, key=key, tls=tls)

    async def _serve_http(
        self, service: Service | None, access: Access, key: bytes, port: int
    ) -> HttpServer:
        try:
            from late.api.http import routes as http
            from late.api.http.uvicorn_server import HttpServer
        except ModuleNotFoundError as error:
            raise ConfigError(
                "HTTP needs starlette and uvicorn: pip install 'late[serve]'"
            ) from error
        routes = [] if (site := self._page(access, key)) is None else site.routes()
        if service is None:
            made = http.beside(routes, self._ready)
        else:
            made = http.make(service, state=self._ready, metrics=self._metrics, more=routes)
        server = HttpServer(made, self._listen.host, port, tls=self._tls)
        await server.start()
        self._tell("http", server.port)
        if self.page is not None:
            address = self._listen.page_at(server.port, self.page.root)
            events.default.emit(events.PAGE_SERVED, url=address)
        return server

    def _page(self, access: Access, key: bytes) -> OperatorPage | None:
        """Make the page for operators if the roles contain it."""
        if "web" not in self._listen.roles:
            return None
        try:
            from late.web.cost_report import Reports
            from late.web.page_context import PageContext
            from late.web.routes import OperatorPage
        except ModuleNotFoundError as error:
            raise ConfigError("the page takes jinja2: pip install 'late[serve]'") from error
        changes, secure = self._listen.web_changes, self._tls is not None
        reports = None if self._listen.reports is None else Reports(self._listen.reports)
        gate = Gate(access)
        self.page = OperatorPage(
            PageContext(
                self._control, gate, key=key, changes=changes, secure=secure, reports=reports
            )
        )
        return self.page

    async def _serve_grpc(self, service: Service | None, local: Local | None, key: bytes) -> None:
        """Serve `late.v1.Queue` if a port was given for it, and this process's shards to others.

        Without a port, the shards are served on any free one.
        """
        from late.api.fleet import peers
        from late.api.grpc.server import RpcServer

        listen, worker = self._listen, self.worker
        public = service if listen.grpc_port is not None else None
        if public is None and local is None:
            return
        handler = None if local is None else peers.handler(local, key)
        server = RpcServer(public, listen.host, listen.grpc_port or 0, tls=self._tls, peers=handler)
        await server.start()
        self.grpc = server
        if public is not None:
            self._tell("grpc", server.port)
        if worker is not None:
            self._begin("announce", self._announce(worker.id, listen.reached_at(server.port)))

    async def _announce(self, worker_id: str, address: str) -> None:
        """Announce the address again and again.

        The worker's row exists only from its first heartbeat on, and is made anew after a loss.
        """
        while True:
            with contextlib.suppress(StoreError):
                await in_thread(self._control.endpoints.announce, worker_id, address)
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    async def _look_at_clock(self) -> None:
        self._clock.sample(await in_thread(self._control.now), time.monotonic())

    def _begin(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        self._loops.append(asyncio.create_task(loop, name=f"late-{name}"))

    def _tell(self, protocol: str, port: int) -> None:
        scheme = f"{protocol}{'s' if self._tls else ''}"
        events.default.emit(events.API_SERVED, protocol=scheme, host=self._listen.host, port=port)

    def _ready(self) -> tuple[bool, str]:
        if self._stopping:
            return False, "it stops"
        trusted = self.worker is None or self.worker.trusted
        return trusted, "" if trusted else "its heartbeat has no answer"

    async def _metrics(self) -> bytes:
        """The metrics of the worker, or of the interfaces alone."""
        if self.worker is not None:
            return await self.worker.telemetry.page()
        return metrics.render(self._counted)

    def ask_to_stop(self) -> None:
        """Ask for a stop without waiting for it; see `Worker.ask_to_stop`."""
        self._stop_asked.set()
        if self.worker is not None:
            self.worker.ask_to_stop()

    async def wait(self) -> int:
        """Serve until asked to stop, stop, and return the exit code."""
        code = 0
        if self.worker is None:
            await self._stop_asked.wait()
            self._drain()
            if self._executor is not None:
                await self._executor.stop()
        else:
            await self.worker.stop_asked()
            self._drain()
            code = await self.worker.wait()
        await self._end()
        return code

    async def stop(self) -> None:
        """Stop in the order that the module's docstring gives."""
        self._drain()
        if self.worker is not None:
            await self.worker.stop()
        if self._executor is not None:
            await self._executor.stop()
        await self._end()

    def _drain(self) -> None:
        self._stopping = True
        if self.grpc is not None:
            self.grpc.drain()
        if self.page is not None:
            self.page.drain()

    async def _end(self) -> None:
        for server in (self.http, self.grpc):
            if server is not None:
                await server.stop()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self.page is not None:
            await self.page.close()
        if self._peers is not None:
            await self._peers.close()
        self._close()
        self.stopped = True

    def _close(self) -> None:
        self._unfollow()
        self._producer.close()
        self._control.close()
