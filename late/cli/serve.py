"""`late serve`: a worker with HTTP and gRPC beside it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from late.cli import options
from late.cli.app_loader import load_app
from late.cli.config import configuration
from late.cli.identity import identity as make_identity
from late.cli.worker import (
    GroupsOption,
    HealthPortOption,
    LogJsonOption,
    LogLevelOption,
    SetOption,
    nameless,
    reader,
    settings_of,
    show_log,
)
from late.errors import ConfigError

NONE = -1


AppOption = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODULE:APP]",
        help="Such as shop.tasks:app. Without it every task is fetched by consumers.",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option("--url", "-u", metavar="URL", help="The database, where there is no app."),
]
PullOption = Annotated[
    list[str] | None,
    typer.Option(metavar="QUEUE", help="Consumers fetch the tasks of it; may be repeated."),
]
HttpOption = Annotated[
    int, typer.Option(help="Port for HTTP; -1 for none, 0 for any.", min=NONE, max=65_535)
]
GrpcOption = Annotated[
    int, typer.Option(help="Port for gRPC; -1 for none, 0 for any.", min=NONE, max=65_535)
]

AuthOption = Annotated[bool, typer.Option("--auth", help="Ask for tokens: late token create.")]
TlsCaOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Clients' certificates signed by it are valid as well."),
]
RolesOption = Annotated[
    str,
    typer.Option(
        help="api: the interfaces. web: the page for operators, at /ui/. tail: own shards. "
        "dispatch: run the app's handlers. Without "
        "tail the tasks come from other processes; without dispatch they run there."
    ),
]
ReportsOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="The page links to the last cost report (late report cost --out) here."
    ),
]
TraceUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The page links to traces here: {trace} stands for the id of one."
    ),
]
ApiChangesOption = Annotated[
    bool, typer.Option("--api-changes", help="Let operators change things over HTTP.")
]
SignedUrlsOption = Annotated[
    bool, typer.Option("--signed-urls", help="Take tasks by URLs of: late url sign.")
]
WebChangesOption = Annotated[
    bool, typer.Option("--web-changes", help="Let the page change things, not only show them.")
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="How others reach this one's gRPC; default: as it is."),
]


@options.shared(make_identity, "identity")
def serve(
    context: typer.Context,
    identity: Any,
    target: AppOption = None,
    config: configuration.Config = None,
    url: DatabaseOption = None,
    pull: PullOption = None,
    host: options.Host = "127.0.0.1",
    http_port: HttpOption = 7280,
    grpc_port: GrpcOption = NONE,
    auth: AuthOption = False,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_ca: TlsCaOption = None,
    roles: RolesOption = "api,tail,dispatch,web",
    api_changes: ApiChangesOption = False,
    web_changes: WebChangesOption = False,
    signed_urls: SignedUrlsOption = False,
    reports: ReportsOption = None,
    trace_url: TraceUrlOption = None,
    advertise: AdvertiseOption = None,
    rate: Annotated[float, typer.Option(help="Requests per second and caller.", min=0.1)] = 2_000.0,
    group: GroupsOption = None,
    health_port: HealthPortOption = None,
    set_: SetOption = None,
    log_level: LogLevelOption = "INFO",
    log_json: LogJsonOption = False,
) -> None:
    """Run a worker and offer its queues over HTTP and gRPC, until SIGTERM or SIGINT.

    Producers put tasks; consumers fetch those of the queues that are pulled: by --pull, or by
    `app.route(queue, target="pull")`. All workers of a group must agree on these queues. Another
    machine is served only with TLS and --auth.
    """
    app = load_app(target) if target is not None else nameless(options.url_of(url))
    if target is not None and url is not None:
        raise ConfigError("an app has its own database: leave --url out")
    for queue in (each for each in dict.fromkeys(pull or ()) if each not in app.routes):
        app.route(queue, target="pull")
    settings: dict[str, Any] = settings_of(set_ or [], group)
    if health_port is not None:
        settings["health_port"] = health_port
    from late.api.server import run
    from late.api.settings import ServeSettings

    listen = ServeSettings(
        host=host,
        http_port=None if http_port == NONE else http_port,
        grpc_port=None if grpc_port == NONE else grpc_port,
        identity=identity,
        auth=auth,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        rate=rate,
        roles=tuple(dict.fromkeys(part.strip() for part in roles.split(","))),
        api_changes=api_changes,
        web_changes=web_changes,
        signed_urls=signed_urls,
        reports=reports,
        trace_url=trace_url,
        advertise=advertise,
    )
    read = reader(context, settings)
    end_logging = show_log(log_level, json=log_json)
    configuration.warn(app.url)
    try:
        raise typer.Exit(run(app, listen, target=target, groups=settings.get("groups"), read=read))
    finally:
        end_logging()
