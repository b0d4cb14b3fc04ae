"""Options that several reports share, and the question for `late_spark` that they make."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from late.cli import options
from late.errors import ConfigError

From = Annotated[
    str, typer.Option("--from", metavar="DAY", help="2026-03, 2026-03-01: local, included.",
                      show_default=False),
]  # fmt: skip
To = Annotated[
    str,
    typer.Option("--to", metavar="DAY", help="The end, not included.", show_default=False),
]
Prices = Annotated[
    Path, typer.Option("--prices", metavar="FILE", help="The price book (YAML).",
                       show_default=False),
]  # fmt: skip
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The report's folder.", show_default=False)
]
Url = Annotated[
    str | None, typer.Option("--url", "-u", metavar="URL", help="The database with the usage; "
                             "else $LATE_URL, unless --usage is given.", show_default=False),
]  # fmt: skip
UsageFiles = Annotated[
    str | None, typer.Option("--usage", metavar="PATH", help="Parquet files of usage instead.",
                             show_default=False),
]  # fmt: skip
Lake = Annotated[
    list[Path] | None, typer.Option("--lake", metavar="DIR", help="Read this lake; with --url also "
                              "what the journal has behind it.", show_default=False),
]  # fmt: skip
Engine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="duckdb, which needs no Java; spark; or "
                      "auto: by how much there is to read."),
]  # fmt: skip
Bills = Annotated[
    list[Path] | None, typer.Option("--bill", metavar="PATH", help="A bill instead of prices: a "
                                    "file, or a folder with its parts; may be repeated."),
]  # fmt: skip
MetricFiles = Annotated[
    list[Path] | None, typer.Option("--metrics", metavar="FILE", help="Metrics of the database; "
                                    "may be repeated."),
]  # fmt: skip
Leaders = Annotated[
    list[str] | None, typer.Option("--leader-region", metavar="REGION", help="Metrics of other "
                                   "regions are a replica's; may be repeated."),
]  # fmt: skip
OwnersFile = Annotated[
    Path | None, typer.Option("--owners", metavar="FILE", help="Owners by pattern of queue and "
                              "task (YAML), before the queues' labels.", show_default=False),
]  # fmt: skip
Zone = Annotated[
    str | None, typer.Option("--tz", metavar="ZONE", help="Days and months of this time zone; "
                             "else the price book's.", show_default=False),
]  # fmt: skip
AcceptGaps = Annotated[
    bool, typer.Option("--accept-gaps", help="Pass over what was pruned before it came into the "
                       "lake: its work counts for nobody. The report names it."),
]  # fmt: skip
By = Annotated[
    str, typer.Option("--by", metavar="NAMES", help="Some of owner, queue, task, group, tenant, "
                      "line, driver, region, day, month; separated by commas."),
]  # fmt: skip


def only(lakes: list[Path] | None) -> Path | None:
    """Return the one lake that was given, if any.

    Raises:
        ConfigError: there are several. What two have in common would count twice.
    """
    if lakes and len(lakes) > 1:
        raise ConfigError("--lake was given twice: a report reads one lake, and what two have in"
                          " common would count twice")  # fmt: skip
    return lakes[0] if lakes else None


def asked(
    from_: From,
    to: To,
    prices: Prices,
    out: Out,
    url: Url = None,
    usage: UsageFiles = None,
    lake: Lake = None,
    bill: Bills = None,
    metrics: MetricFiles = None,
    owners: OwnersFile = None,
    tz: Zone = None,
    engine: Engine = "auto",
    accept_gaps: AcceptGaps = False,
    force: options.Force = False,
) -> Any:
    """Make a `late_spark.commands.Asked` of the options that all reports share.

    Raises:
        ConfigError: the extra is not installed, both a URL and files are given, or there is no
            such engine.
    """
    try:
        from late_spark.commands import Asked
        from late_spark.place import ENGINES, Source
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reports need what the extra brings ({error.name} is missing): "
            'pip install "late-queue[reports]"'
        ) from None
    folder = only(lake)
    if usage and (url or folder):
        raise ConfigError("give --usage, or --url and --lake, not both")
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine[:64]!r}: one of {', '.join(ENGINES)}")
    chosen: Any = engine
    if usage:
        source = Source(usage=usage, engine=chosen)
    else:
        # A lake is enough by itself; a database in the environment is not added unasked.
        url = url if folder and not url else options.url_of(url)
        source = Source(url=url, lake=folder, engine=chosen, accept_gaps=accept_gaps)
    return Asked(
        source=source, from_=from_, to=to, prices=prices, out=out, tz=tz, bills=bill or (),
        metrics=metrics or (), owners=owners, force=force, say=say,
    )  # fmt: skip


def say(text: str) -> None:
    """Print progress to standard error."""
    print(f"[report] {text}", file=sys.stderr, flush=True)
