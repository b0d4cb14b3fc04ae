"""`late analyze`: which transactions abort or block which, and on what."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import msgspec
import typer

from late.cli import options, output
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control.analyze.report import Change, Report

_DETAILED = 5
"""The pairs whose statements are printed."""


def analyze(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    seconds: Annotated[
        float,
        typer.Option(help="How long PostgreSQL is sampled. 0: ask no database.", min=0, max=3600),
    ] = 10.0,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="A log of `--log-json`, of a worker or a service. Repeatable."),
    ] = None,
    server_log: Annotated[
        list[Path] | None,
        typer.Option(help="A log of the PostgreSQL server, for its deadlocks. Repeatable."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the report in this file.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with a report that was kept.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show which transactions abort or block which, on what, and what would help.

    Pairs of tags, ranked by the time that they cost each other: from the locks that are waited for
    now (PostgreSQL), from Spanner's statistics of ten minutes, and from the conflicts that workers
    and services have logged. It changes nothing.
    """
    from late.control.analyze.analyze import Seen, join
    from late.control.analyze.report import compare

    before = None if against is None else _read(against)
    if not seconds and not log and not server_log:
        raise ConfigError("--seconds 0 asks no database: give --log or --server-log")
    seen = Seen()
    if seconds:
        with options.control_of(url, url_option) as control:
            output.note(f"{control.url}")
            seen = control.conflicts(seconds)
    with ExitStack() as stack:
        found = join(
            seen,
            [stack.enter_context(_open(path)) for path in log or ()],
            [stack.enter_context(_open(path)) for path in server_log or ()],
        )
    if save is not None:
        save.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    changes = [] if before is None else compare(before, found)
    if json:
        output.as_json({**msgspec.to_builtins(found), "changes": changes})
        return
    _tables(found)
    if before is not None:
        _changes(changes)


def _open(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _read(path: Path) -> Report:
    from late.control.analyze.report import Report

    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no report of `late analyze --save`") from error


def _tables(found: Report) -> None:
    for text in found.notes:
        output.note(f"note: {text}")
    output.table(
        f"Transactions in each other's way, {found.lost_s:.3f} s lost in {found.for_s:.0f} s",
        ("one", "other", "lost s>", "times>", "how", "attempts>", "where"),
        [
            (*pair.tags, f"{pair.lost_s:.3f}", pair.count,
             ", ".join(f"{kind} {n}" for kind, n in pair.kinds.items()), pair.attempts_max,
             ", ".join(place.place for place in pair.places) or "-")
            for pair in found.pairs
        ],
    )  # fmt: skip
    for number, pair in enumerate(found.pairs[:_DETAILED], 1):
        typer.echo(f"{number}. {' / '.join(pair.tags)}")
        for each in pair.statements:
            statement = " ".join(each.statement.split())
            typer.echo(f"   {output.plain(each.tag)}: {output.plain(statement)}")
        for text in pair.advice:
            typer.echo(f"   what helps: {text}")
    if found.transactions:
        output.table(
            "Transactions by the database's own count",
            ("tag", "attempts>", "aborted>", "average s>", "tables"),
            [
                (t.tag, t.attempts, t.aborts, f"{t.average_s:.3f}", ", ".join(t.tables))
                for t in found.transactions
            ],
        )


def _changes(changes: list[Change]) -> None:
    output.table(
        "Before and after, in seconds lost a minute",
        ("one", "other", "before>", "after>"),
        [
            (*each.tags, *("-" if n is None else f"{n:.3f}" for n in (each.before, each.after)))
            for each in changes
        ],
    )
