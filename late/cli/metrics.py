"""The command `metrics`: one look at the database, as Prometheus reads it."""

from __future__ import annotations

import threading
import time
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
) -> None:
    """Print what the database says of queues and groups, as Prometheus reads it.

    Workers serve this and their own metrics by themselves (--health-port). What this command adds
    is that it needs none: with --port it goes on to tell of a backlog that nobody works on.
    """
    with control_of(url, url_option) as control:
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


class Page:
    """The page, at most `KEEP_S` old. Any thread may call it."""

    def __init__(self, control: Control, *, slots: int, drain_s: float) -> None:
        self._control, self._slots, self._drain_s = control, slots, drain_s
        self._lock = threading.Lock()
        self._kept: tuple[float, bytes] | None = None

    def __call__(self) -> bytes:
        from late.metrics import Registry, metrics_of, render
        from late.telemetry import LIMIT, of_database

        with self._lock:
            now = time.monotonic()
            if self._kept is None or now - self._kept[0] > KEEP_S:
                seen, signals = self._control.overview(limit=LIMIT)
                registry = Registry()
                values = of_database(seen, signals, slots=self._slots, drain_s=self._drain_s)
                registry.replace(metrics_of("database"), values)
                self._kept = (now, render(registry))
            return self._kept[1]
