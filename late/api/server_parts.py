"""Make the parts of `late serve`. `Server` starts and stops them.

Some parts need a package that is optional. It is imported when the part is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from late.api import limits
from late.api.access.auth import Access
from late.api.access.peer_keys import Keyring
from late.api.access.web_auth import Gate
from late.api.identity.identities import Identities
from late.api.operator.operators import Operators
from late.api.producer import Producer
from late.api.pull.deliveries import Local, Source
from late.api.service import Service
from late.api.settings import ServeSettings
from late.app.app import App
from late.clock import DatabaseClock
from late.config import WorkerConfig
from late.control import Control
from late.control.replica import ReplicaReads
from late.errors import ConfigError
from late.model.targets import configured
from late.model.task import PULL
from late.worker.assembly import as_pulled, policies_of
from late.worker.worker import Worker

if TYPE_CHECKING:
    from starlette.routing import Route

    from late.api.fleet.fleet import Fleet
    from late.api.grpc.server import RpcServer
    from late.api.http.uvicorn_server import HttpServer, Tls
    from late.web.routes import OperatorPage


def make_worker(
    app: App,
    listen: ServeSettings,
    groups: Sequence[str],
    target: str | None,
    settings: WorkerConfig | None,
) -> Worker | None:
    """Make the worker if the roles contain `tail`. Without `dispatch`, its tasks are pulled."""
    if "tail" not in listen.roles:
        return None
    policies = policies_of(app)
    if "dispatch" not in listen.roles:
        policies = as_pulled(policies)
    worker = Worker(app, groups=groups, target=target, settings=settings, policies=policies)
    worker.telemetry.asked = True
    return worker


def make_local(app: App, worker: Worker, groups: Sequence[str], keys: Keyring) -> Local:
    """Make the source of the pulled tasks of this process."""
    return Local(
        worker.pulls.by_queue,
        worker=worker.id,
        groups=groups,
        codec=app.codec,
        keys=keys,
        url=app.url,
    )


def make_access(
    listen: ServeSettings, control: Control, clock: DatabaseClock, identities: Identities
) -> Access:
    """Make the access of all interfaces, without any tokens yet."""
    access = Access(
        control.tokens.all if listen.guarded else None,
        now_us=clock.now_us,
        pace=limits.Pace(listen.rate),
        services=identities.services,
    )
    if identities.people is not None:
        access.follow_sessions(control.audit.ended_sessions)
    return access


def make_service(
    app: App,
    producer: Producer,
    source: Source,
    access: Access,
    control: Control,
    *,
    group: str,
    keys: Keyring,
) -> Service:
    """Make the service behind the interfaces, whose default group is `group`."""
    return Service(
        producer,
        source,
        access,
        look=control.status.read,
        group=group,
        keys=keys,
        pulled=[queue for queue, policy in app.routes.items() if policy.target == PULL],
    )


def make_operators(
    app: App, listen: ServeSettings, access: Access, control: Control, *, group: str
) -> Operators:
    """Make the operations of operators, for all interfaces; `group` is the default group."""
    return Operators(
        control,
        access,
        group=group,
        targets=configured(app.targets.values()),
        changes=listen.api_changes,
    )


def make_fleet(
    listen: ServeSettings, local: Local | None, control: Control, *, me: str, keys: Keyring
) -> Fleet | None:
    """Make the fleet if gRPC is installed. The page alone needs no other process."""
    if set(listen.roles) == {"web"}:
        return None
    try:
        from late.api.fleet.fleet import Fleet
    except ModuleNotFoundError:
        return None
    tls = (listen.tls_ca, listen.tls_key, listen.tls_cert) if listen.tls_cert else None
    return Fleet(local, control.endpoints.all, me=me, keys=keys, tls=tls)


def make_grpc(
    listen: ServeSettings,
    tls: Tls | None,
    service: Service | None,
    operators: Operators | None,
    local: Local | None,
    keys: Keyring,
) -> RpcServer | None:
    """Make the server of the gRPC API, if it has a port, and of this process's shards.

    Without a port, the shards are served to other processes on any free one.
    """
    from late.api.fleet import peers
    from late.api.grpc.server import RpcServer

    public = service if listen.grpc_port is not None else None
    if public is None and local is None:
        return None
    handler = None if local is None else partial(peers.handler, local, keys)
    return RpcServer(
        public, listen.host, listen.grpc_port or 0, operators=operators, tls=tls, peers=handler
    )


def make_http(
    listen: ServeSettings,
    tls: Tls | None,
    port: int,
    service: Service | None,
    *,
    operators: Operators | None,
    state: Callable[[], tuple[bool, str]],
    metrics: Callable[[], Awaitable[bytes]],
    more: Sequence[Route],
) -> HttpServer:
    """Make the server of the HTTP API and of the routes in `more`; see `late.api.http.routes`."""
    try:
        from late.api.http import routes
        from late.api.http.operators import OperatorRoutes
        from late.api.http.uvicorn_server import HttpServer
    except ModuleNotFoundError as error:
        raise ConfigError(
            "HTTP needs starlette and uvicorn: pip install 'late-queue[serve]'"
        ) from error
    given = None if operators is None else OperatorRoutes(operators)
    made = routes.make(
        service,
        state=state,
        metrics=metrics,
        operators=given,
        signed_urls=listen.signed_urls,
        more=more,
    )
    return HttpServer(made, listen.host, port, tls=tls)


def make_reads(control: Control, settings: WorkerConfig) -> ReplicaReads | None:
    """Make the reads of `read_url`; None without one."""
    if settings.read_url is None:
        return None
    return ReplicaReads(
        control,
        settings.read_url,
        max_lag_s=settings.read_lag_s,
        alarm_s=settings.lag_alarm_s,
    )


def make_page(
    listen: ServeSettings,
    control: Control,
    access: Access,
    identities: Identities,
    key: bytes,
    reads: ReplicaReads | None,
) -> OperatorPage:
    """Make the page for operators."""
    try:
        from late.web.page_context import PageContext
        from late.web.routes import OperatorPage
        from late.web.usage.cost_report import Reports
    except ModuleNotFoundError as error:
        raise ConfigError("the page takes jinja2: pip install 'late-queue[serve]'") from error
    people = identities.people
    return OperatorPage(
        PageContext(
            control,
            Gate(access, people=people, proxy=identities.proxy, control=control),
            key=key,
            changes=listen.web_changes,
            secure=listen.tls_cert is not None or (people is not None and people.secure),
            reports=None if listen.reports is None else Reports(listen.reports),
            reads=reads,
            trace_url=listen.trace_url,
        )
    )
