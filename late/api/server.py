"""`late serve`: a worker with the interfaces beside it, on one event loop.

At a stop the interfaces first say that nothing more will come. They then take answers until the
grace of the running attempts is over, and close when all answers are recorded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from late import config, events
from late.api import server_parts as parts
from late.api.access.auth import Access
from late.api.access.peer_keys import Keyring
from late.api.health_thread import HealthThread
from late.api.identity import identities
from late.api.operator.operators import Operators
from late.api.producer import Producer
from late.api.pull.deliveries import Local, Source
from late.api.replica_metrics import replica_job
from late.api.service import Service
from late.api.settings import INTERFACES, ServeSettings
from late.app.app import App
from late.clock import DatabaseClock
from late.concurrency import in_thread
from late.config import WorkerConfig
from late.control import Control
from late.errors import ConfigError
from late.observability import metrics
from late.worker.assembly import run_process, unwrap_group
from late.worker.background import BackgroundJob, BackgroundService
from late.worker.reload import Reading, of_keywords
from late.worker.startup import reach_database

if TYPE_CHECKING:
    from late.api.fleet.executor import Executor
    from late.api.fleet.fleet import Fleet
    from late.api.grpc.server import RpcServer
    from late.api.http.uvicorn_server import HttpServer
    from late.web.routes import OperatorPage

logger = logging.getLogger("late.api")

ANNOUNCE_EVERY_S = 2.0
CLOCK_EVERY_S = 5.0
"""Without a worker: how often the database's clock is read, which tells too that it answers."""
SILENT_S = 20.0
"""The database is away if its clock could not be read for so long: it is not ready then."""


def run(
    app: App,
    listen: ServeSettings,
    *,
    groups: Sequence[str] | None = None,
    target: str | None = None,
    read: Callable[[], Reading] | None = None,
    **settings: Any,
) -> int:
    """Run a worker with the interfaces; see `late.worker.worker.run`."""
    make = partial(Server, app, listen, target=target)
    return run_process(app, make, groups, read or partial(of_keywords, settings))


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
        self._identities = identities.make(listen.identity, page=listen.serves_page)
        self._listen = listen
        self._app = app
        self._groups = tuple(groups or (app.group,))
        self.worker = parts.make_worker(app, listen, self._groups, target, settings)
        self._settings = settings or config.load()
        self._target = target
        self._executor: Executor | None = None
        self._clock = DatabaseClock() if self.worker is None else self.worker.clock
        self._control = Control(app.url, alarm_s=self._settings.lag_alarm_s)
        self._reads = parts.make_reads(self._control, self._settings)
        self._producer = Producer(app, routed=app.routes)
        self._counted = metrics.Registry()
        """The metrics of a process without a worker."""
        self._unfollow: Callable[[], None] = lambda: None
        self._health: HealthThread | None = None
        if self.worker is None:
            self._unfollow = metrics.follow(events.default, self._counted)
            if self._settings.health_port is not None:
                self._health = HealthThread(self._settings, self._ready, self._metrics)
        self._listening = False
        self._answered_s = -math.inf
        """The time of the last answer to the reading of the clock, monotonic."""
        self._jobs: list[BackgroundJob] = []
        self._background: asyncio.Task[None] | None = None
        self._failed = False
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
        if self._health is not None:
            self._health.start()
        try:
            if self.worker is not None:
                await self.worker.start()
            else:
                wait_s = self._settings.wait_for_database_s
                await reach_database(self._read_clock, wait_s, self._stop_asked)
        except BaseException:
            self._close()
            raise
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        listen, control, worker = self._listen, self._control, self.worker
        keys = Keyring(control.tokens.peer_keys, self._clock.now_us)
        if set(listen.roles) != {"web"}:  # An operator's login runs the page alone, without them.
            await keys.load()
            self._jobs.append(keys.job())
        local = None if worker is None else parts.make_local(self._app, worker, self._groups, keys)
        me = "" if worker is None else worker.id
        fleet = self._peers = parts.make_fleet(listen, local, control, me=me, keys=keys)
        source = fleet or local
        if worker is None:
            self._jobs.append(
                BackgroundJob(name="clock", run=self._read_clock, period_s=CLOCK_EVERY_S)
            )
        if source is None and "api" in listen.roles:
            raise ConfigError("without shards tasks come from other processes: that takes gRPC, "
                              "pip install 'late-queue[grpc]'")  # fmt: skip
        access = parts.make_access(listen, control, self._clock, self._identities)
        if INTERFACES & set(listen.roles) and not access.open:
            await access.load()
            self._jobs += [*access.jobs(), *self._identities.jobs()]
        service = operators = None
        if source is not None and "api" in listen.roles:
            service = await self._serve_tasks(source, access, keys)
            operators = parts.make_operators(
                self._app, listen, access, control, group=self._groups[0]
            )
        if fleet is not None:
            await fleet.look()
            self._jobs.append(fleet.job())
            await self._serve_grpc(service, operators, local, keys)
            if "dispatch" in listen.roles and worker is None:
                await self._execute(fleet, keys)
        if listen.http_port is not None and INTERFACES & set(listen.roles):
            await self._serve_http(service, operators, access, listen.http_port)
        self._background = asyncio.create_task(self._run_jobs(), name="late-interfaces")
        self._listening = True

    async def _read_clock(self) -> None:
        """Read the database's clock, as a worker does with each heartbeat."""
        self._clock.sample(await in_thread(self._control.now), time.monotonic())
        self._answered_s = time.monotonic()

    async def _serve_tasks(self, source: Source, access: Access, keys: Keyring) -> Service:
        producer, control = self._producer, self._control
        await producer.look(control)
        self._jobs.append(producer.job(control))
        service = parts.make_service(
            self._app, producer, source, access, control, group=self._groups[0], keys=keys
        )
        if self._app.max_backlog is not None:
            self._jobs.append(service.backlog_job())
        return service

    async def _execute(self, fleet: Fleet, keys: Keyring) -> None:
        from late.api.fleet.executor import Executor

        self._executor = Executor(
            self._app,
            fleet,
            keys=keys,
            groups=self._groups,
            settings=self._settings,
            now_us=self._clock.now_us,
            target=self._target,
        )
        await self._executor.start()

    async def _serve_http(
        self, service: Service | None, operators: Operators | None, access: Access, port: int
    ) -> None:
        listen = self._listen
        if "web" in listen.roles:
            key = await in_thread(self._control.tokens.form_key)
            if self._reads is not None:
                await in_thread(self._reads.check)
                counted = self._counted if self.worker is None else self.worker.telemetry.registry
                self._jobs.append(replica_job(self._reads, counted))
            self.page = parts.make_page(
                listen, self._control, access, self._identities, key, self._reads
            )
        server = parts.make_http(
            listen,
            self._tls,
            port,
            service,
            operators=operators,
            state=self._ready,
            metrics=self._metrics,
            more=[] if self.page is None else self.page.routes(),
        )
        if self._identities.people is not None and self.page is not None:
            self._identities.people.serve(key, listen.page_at(server.port, self.page.root))
        await server.start()
        self.http = server
        self._tell("http", server.port)
        if self.page is not None:
            address = listen.page_at(server.port, self.page.root)
            events.default.emit(events.PAGE_SERVED, url=address)

    async def _serve_grpc(
        self,
        service: Service | None,
        operators: Operators | None,
        local: Local | None,
        keys: Keyring,
    ) -> None:
        listen, worker = self._listen, self.worker
        server = parts.make_grpc(listen, self._tls, service, operators, local, keys)
        if server is None:
            return
        await server.start()
        self.grpc = server
        if service is not None and listen.grpc_port is not None:
            self._tell("grpc", server.port)
        if worker is not None:
            # The worker's row exists only from its first heartbeat on, and is made anew after a
            # loss. So the address is announced again and again.
            address = listen.reached_at(server.port)
            announce = partial(in_thread, self._control.endpoints.announce, worker.id, address)
            self._jobs.append(
                BackgroundJob(name="announce", run=announce, period_s=ANNOUNCE_EVERY_S, first_s=0.0)
            )

    async def _run_jobs(self) -> None:
        """Run the jobs. If one has a defect, the process stops, as a worker does."""
        try:
            await BackgroundService(self._jobs).run()
        except Exception as failure:
            error = unwrap_group(failure)
            logger.error("an interface failed, the process stops: %s", error, exc_info=error)
            self._failed = True
            self.ask_to_stop()

    def _tell(self, protocol: str, port: int) -> None:
        scheme = f"{protocol}{'s' if self._tls else ''}"
        events.default.emit(events.API_SERVED, protocol=scheme, host=self._listen.host, port=port)

    def _ready(self) -> tuple[bool, str]:
        if self._stopping:
            return False, "it stops"
        if not self._listening:
            return False, "it starts"
        if self.worker is None:
            answers = time.monotonic() - self._answered_s < SILENT_S
            return answers, "" if answers else "the database does not answer"
        return self.worker.trusted, "" if self.worker.trusted else "its heartbeat has no answer"

    async def _metrics(self) -> bytes:
        """The metrics of the worker, or of the interfaces alone."""
        if self.worker is not None:
            return await self.worker.telemetry.page()
        return metrics.render(self._counted)

    def take(self, settings: WorkerConfig) -> None:
        """Go on with these settings; see `Worker.take`."""
        self._settings = settings
        self._control.groups.set_alarm(settings.lag_alarm_s)
        if self._reads is not None:
            self._reads.set_alarm(settings.lag_alarm_s)
        if self.worker is not None:
            self.worker.take(settings)

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
        return code or int(self._failed)

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
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait({self._background})
        if self.page is not None:
            await self.page.close()
        if self._peers is not None:
            await self._peers.close()
        self._close()
        self.stopped = True

    def _close(self) -> None:
        if self._health is not None:
            self._health.stop()
        self._unfollow()
        self._producer.close()
        if self._reads is not None:
            self._reads.close()
        self._control.close()
