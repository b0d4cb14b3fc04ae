"""The command `metrics`: one look at the database, as Prometheus reads it."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli.options import UrlArgument, UrlOption, control_of

if TYPE_CHECKING:
    from late.control import Control

KEEP_S = 5.0
"""However often it is asked, the database is looked at that often at most."""


def metrics(
    url: UrlArgument = None,
    url_option: UrlOption = None,
    port: Annotated[
        int | None,
        typer.Option(help="Serve /metrics here instead, until SIGTERM; 0: any.", min=0, max=65_535),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    slots: Annotated[
        int, typer.Option(help="Tasks that one worker runs at once, for wanted workers.", min=1)
    ] = 16,
    drain: Annotated[
        float, typer.Option(metavar="S", min=1, help="In what time a backlog is to be gone.")
    ] = 60.0,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Append the server's own counters here, for `late report cost "
            "--metrics`, until SIGTERM."
        ),
    ] = None,
    every: Annotated[
        float, typer.Option(metavar="S", min=1, help="How often, with --record.")
    ] = 60.0,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="projects/P/instances/I",
            help="With --record, of Spanner: read Cloud Monitoring.",
        ),
    ] = None,
) -> None:
    """Print what the database says of queues and groups, as Prometheus reads it.

    Workers serve this and their own metrics by themselves (--health-port). What this command adds
    is that it needs none: with --port it goes on to tell of a backlog that nobody works on, and
    with --record it keeps what the database server counts, for the cost report.
    """
    with control_of(url, url_option) as control:
        if record is not None:
            _record(control, record, every, instance)
            return
        page = Page(control, slots=slots, drain_s=drain)
        if port is None:
            typer.echo(page().decode(), nl=False)
            return
        control.check()
        from late.cli.stopping import until_told
        from late.metrics.serving import MetricsServer

        server = MetricsServer(host, port, page)
        typer.echo(f"metrics on http://{host}:{server.port}/metrics", err=True)
        until_told()
        server.stop()


def _record(control: Control, path: Path, every_s: float, instance: str | None) -> None:
    """Look and append until told to stop. A look that fails is told and tried again later; the
    first one must not."""
    from late.autoscaler.sources import MetricsError, source_of
    from late.cli.recording import Recorder, of_monitoring, of_server
    from late.cli.stopping import stop_event
    from late.errors import StoreError

    if instance is None:
        control.check()
        recorder = Recorder(path, lambda: of_server(control.server()))
    else:
        source = source_of("monitoring", instance, "nodes")
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
    """The page, at most `KEEP_S` old. Any thread may call it."""

    def __init__(self, control: Control, *, slots: int, drain_s: float) -> None:
        self._control, self._slots, self._drain_s = control, slots, drain_s
        self._lock = threading.Lock()
        self._kept: tuple[float, bytes] | None = None

    def __call__(self) -> bytes:
        from late.metrics import Registry, metrics_of, render
        from late.telemetry import LIMIT, of_database, of_server

        with self._lock:
            now = time.monotonic()
            if self._kept is None or now - self._kept[0] > KEEP_S:
                seen, signals = self._control.overview(limit=LIMIT)
                registry = Registry()
                values = of_database(seen, signals, slots=self._slots, drain_s=self._drain_s)
                server = of_server(self._control.server())
                registry.replace(metrics_of("database"), itertools.chain(values, server))
                self._kept = (now, render(registry))
            return self._kept[1]
