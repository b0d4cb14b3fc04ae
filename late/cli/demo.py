"""`late demo`: the example service from end to end, on a given database or one of its own."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from late.cli import options
from late.errors import ConfigError


def demo(
    url_option: options.Url = None,
    store: Annotated[
        Literal["sqlite", "postgres", "spanner"] | None,
        typer.Option(help="Bring up a database for the time of the demo.", show_default=False),
    ] = None,
    trips: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A CSV of trips; else made-up ones.")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of made-up trips.", min=1)] = 1_000,
    speed: Annotated[
        float, typer.Option(help="Play the trips faster by this factor.", min=1)
    ] = 86_400.0,
    kill: Annotated[bool, typer.Option(help="Kill a worker in the middle.")] = True,
    json: options.Json = False,
) -> None:
    """Run a small fulfilment service end to end and check that every promise was kept.

    Without --store, --url or LATE_URL it uses a SQLite file of its own, which is gone afterwards.
    PostgreSQL is the one that LATE_POSTGRES_URL names, else a private server; Spanner is the
    emulator that SPANNER_EMULATOR_HOST names, else a private one.
    """
    if store is not None and url_option is not None:
        raise ConfigError("--store brings up a database and --url names one: give one of them")
    main = _main()
    with ExitStack() as stack:
        url = url_option
        if store is None:
            url = options.named_url(url)
        elif store != "sqlite":
            from late.testing.servers.databases import STORES

            url = stack.enter_context(STORES[store]())
        code: int = main.run_demo(url, trips, count=count, speed=speed, kill=kill, json=json)
    raise typer.Exit(code)


def _main() -> Any:
    """Return the example: part of an installed package, or beside it in a checkout."""
    for package in ("late._examples.fulfilment", "examples.fulfilment"):
        try:
            return importlib.import_module(f"{package}.main")
        except ModuleNotFoundError as error:
            if error.name is None or not f"{package}.main".startswith(error.name):
                raise
    raise ConfigError("the examples are missing from this installation of late")
