"""`late metrics`: one look at the database, as Prometheus reads it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control import Control
    from late.control.status.server import Server

KEEP_S = 5.0
"""The shortest time between two looks at the database, however often the page is asked for."""


def metrics(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    port: Annotated[
        int | None,
        typer.Option(help="Serve /metrics here instead, until SIGTERM; 0: any.", min=0, max=65_535),
    ] = None,
    host: options.Host = "127.0.0.1",
    slots: Annotated[
        int, typer.Option(help="Tasks that one worker runs at once, for wanted workers.", min=1)
    ] = 16,
    drain: Annotated[
        float, typer.Option(metavar="S", min=1, help="Seconds in which a backlog is to be gone.")
    ] = 60.0,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Append the server's own counters here, for `late report cost "
            "--metrics`, until SIGTERM."
        ),
    ] = None,
    every: Annotated[
        float, typer.Option(metavar="S", min=1, help="Seconds between two samples.")
    ] = 60.0,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="projects/P/instances/I",
            help="With --record on Spanner: read Cloud Monitoring.",
        ),
    ] = None,
    status_vars: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="For CockroachDB: a node's http://HOST:8080, which counts; repeat for each node.",
        ),
    ] = None,
) -> None:
    """Print what the database says of queues and groups, as Prometheus reads it.

    Workers serve this and their own metrics by themselves (--health-port). What this command adds
    is that it needs none: with --port it goes on to tell of a backlog that nobody works on, and
    with --record it keeps what the database server counts, for the cost report.
    """
    from late.control.status.cockroach_nodes import checked

    if instance is not None and status_vars:
        raise ConfigError("a database is Spanner's or CockroachDB's: --instance or --status-vars")
    nodes = checked(status_vars or ())
    with options.control_of(url, url_option) as control:
        if record is not None:
            _record(control, record, every, instance, nodes)
            return
        page = Page(control, slots=slots, drain_s=drain, nodes=nodes)
        if port is None:
            typer.echo(page().decode(), nl=False)
            return
        control.check()
        from late.cli.signals import stop_event
        from late.observability.metrics.http_server import MetricsServer

        stop = stop_event()
        server = MetricsServer(host, port, page)
        typer.echo(f"metrics on http://{host}:{server.port}/metrics", err=True)
        stop.wait()
        server.stop()


def _record(
    control: Control, path: Path, every_s: float, instance: str | None, nodes: list[str]
) -> None:
    """Look and append until told to stop.

    A look that fails is reported and tried again later; the first one must not fail.
    """
    from late.autoscaler.metrics.factory import create_source
    from late.autoscaler.metrics.source import MetricsError
    from late.cli.metrics_recorder import Recorder, of_monitoring, of_nodes, of_server
    from late.cli.signals import stop_event
    from late.control.status.cockroach_nodes import fetch
    from late.errors import StoreError

    if nodes:
        recorder = Recorder(path, lambda: of_nodes(fetch(nodes), time.time_ns() // 1_000))
    elif instance is None:
        control.check()
        recorder = Recorder(path, lambda: of_server(control.status.server()))
    else:
        source = create_source("monitoring", instance, "nodes")
        recorder = Recorder(path, lambda: of_monitoring(source.read(time.time_ns() // 1_000)))
    stop = stop_event()
    recorder.once()
    typer.echo(f"recording to {path} every {every_s:g} s", err=True)
    while not stop.wait(every_s):
        try:
            recorder.once()
        except (StoreError, MetricsError) as error:
            typer.echo(f"no sample: {error}", err=True)


class Page:
    """The page, at most `KEEP_S` old. Any thread may call it.

    Args:
        nodes: URLs of CockroachDB's nodes, which say what they count. While one does not answer,
            the page has nothing of the server, and everything else.
    """

    def __init__(
        self, control: Control, *, slots: int, drain_s: float, nodes: Sequence[str] = ()
    ) -> None:
        self._control, self._slots, self._drain_s = control, slots, drain_s
        self._nodes = nodes
        self._lock = threading.Lock()
        self._kept: tuple[float, bytes] | None = None

    def __call__(self) -> bytes:
        from late.observability.metrics import Registry, metrics_of, render
        from late.worker.metrics import LIMIT, of_database, of_server, of_tenants

        with self._lock:
            now = time.monotonic()
            if self._kept is None or now - self._kept[0] > KEEP_S:
                seen, signals, paces = self._control.status.detailed(limit=LIMIT)
                registry = Registry()
                values = of_database(seen, signals, slots=self._slots, drain_s=self._drain_s)
                server = of_server(self._server())
                found = itertools.chain(values, of_tenants(paces), server)
                registry.replace(metrics_of("database"), found)
                self._kept = (now, render(registry))
            return self._kept[1]

    def _server(self) -> Server:
        if not self._nodes:
            return self._control.status.server()
        from late.control.status.cockroach_nodes import fetch, server_of
        from late.control.status.server import Server
        from late.errors import StoreUnavailable

        at_us = time.time_ns() // 1_000
        try:
            return server_of(fetch(self._nodes), at_us)
        except StoreUnavailable as error:
            typer.echo(f"nothing is known of the server: {error}", err=True)
            return Server(at_us)
