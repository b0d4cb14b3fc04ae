"""`late report throughput`: how fast the work flowed."""

from __future__ import annotations

import csv
import io
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from late.cli import output
from late.cli.options import Force, Json, Url, moment_us, url_of
from late.cli.reports.lake import missing
from late.cli.reports.options import only
from late.errors import ConfigError

if TYPE_CHECKING:
    from late_spark.throughput import Limit

SHOWN = {
    "at": "at",
    "enqueued": "enqueued>",
    "done": "done>",
    "failed": "failed>",
    "retried": "retried>",
    "dead": "dead>",
    "expired": "expired>",
    "arrivals_per_s": "in/s>",
    "ends_per_s": "out/s>",
    "waiting_p50_s": "wait p50>",
    "waiting_p99_s": "p99>",
    "busy_p50_s": "busy p50>",
    "busy_p99_s": "p99>",
    "backlog": "backlog>",
    "concurrency_used": "slots used>",
}
"""Columns of the report that fit a terminal; files have all columns."""


def throughput(
    from_: Annotated[
        str, typer.Option("--from", metavar="TIME", help="2026-05-01T00:00:00Z, or an age: 7d.")
    ] = "24h",
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="The end, not included.")] = "0s",
    by: Annotated[
        str, typer.Option("--by", metavar="NAMES", help="Some of queue, task, group, target, "
                          "owner, tenant; separated by commas."),
    ] = "queue",
    every: Annotated[
        str, typer.Option("--every", metavar="SPAN", help="hour or day, a row each.")
    ] = "hour",
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="Zone of the days.")] = "UTC",
    lake: Annotated[
        list[Path] | None, typer.Option("--lake", metavar="DIR", help="Read this lake, and of the "
                                  "journal only what is behind it.", show_default=False),
    ] = None,
    movers: Annotated[
        bool, typer.Option("--movers", help="Instead: what changed most, the last 7 days against "
                           "the 7 before."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all columns, as .csv or "
                                  ".parquet.", show_default=False),
    ] = None,
    force: Force = False,
    url_option: Url = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Report arrivals, ends, failures, times, backlog and saturation, per hour or day.

    Times are within 3 %. The backlog is what came minus what ended since the first row that was
    read: from the beginning of the journal or the lake it is the backlog itself. The first hour or
    day is the whole one that --from is in; --movers looks at the two weeks before --to.
    """
    url = url_of(url_option)
    try:
        from late_spark import throughput as report
    except ModuleNotFoundError as error:
        raise missing(error) from None
    names = [name.strip() for name in by.split(",") if name.strip()]
    span = _checked(names, list(report.DIMENSIONS), every, tz)
    _free(out, force=force)
    from late.control import Control

    with Control(url) as control:
        control.check()
        now_us = control.now()
        limits = _limits(control)
    from_us, to_us = moment_us(from_, "--from", now_us), moment_us(to, "--to", now_us)
    if movers:
        # Of a journal that is kept for less, the week before would be short.
        from_us = to_us - 2 * report.MOVERS_DAYS * 24 * report.HOUR_US
    if from_us >= to_us:
        raise ConfigError(f"--from {from_} is not before --to {to}")
    if not movers:
        from_us = report.begins(from_us, span, tz)
    rows = _computed(url, only(lake), movers, from_us, to_us, names, span, tz, limits)
    if out is not None:
        _write(out, rows)
        output.note(f"{len(rows):,} rows in {out}")
    elif json:
        output.as_json({"rows": rows})
    else:
        _table(rows, names, movers=movers)


def _checked(names: list[str], known: list[str], every: str, tz: str) -> Literal["hour", "day"]:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    for name in names:
        if name not in known:
            raise ConfigError(f"--by {name[:64]!r}: some of {', '.join(known)}")
    if not names:
        raise ConfigError(f"--by nothing: some of {', '.join(known)}")
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"--tz {tz[:64]!r}: there is no such time zone") from None
    if every == "hour":
        return "hour"
    if every == "day":
        return "day"
    raise ConfigError(f"--every {every[:64]!r}: hour or day")


def _free(out: Path | None, *, force: bool) -> None:
    if out is None:
        return
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out}: .csv or .parquet")
    output.refuse_existing(out, force=force)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out}: {out.parent} cannot be written")


def _limits(control: Any) -> dict[str, Limit]:
    from late_spark.throughput import Limit

    found = {}
    for each in control.queues.settings("queue"):
        concurrency = each.knobs.concurrency
        fixed = concurrency if isinstance(concurrency, int) else None
        found[each.name] = Limit(fixed, each.knobs.rate)
    return found


def _computed(
    url: str, lake: Path | None, movers: bool, from_us: int, to_us: int, by: list[str],
    every: Literal["hour", "day"], tz: str, limits: dict[str, Limit],
) -> list[dict[str, Any]]:  # fmt: skip
    from late_spark import lake as lakes
    from late_spark import session, throughput
    from late_spark.cost import NOBODY
    from late_spark.spark_errors import explained
    from late_spark.times import moment
    from pyspark.sql.functions import unix_micros

    _refuse_holes(url, lake, from_us, to_us)
    output.note("starting Spark")
    spark = session.start(progress=sys.stderr.isatty())
    try:
        if lake is not None:
            usage = lakes.frame(spark, lake, url=url, to_us=to_us)
        else:
            # The backlog is added up from the first row that there is.
            usage = lakes.tail(spark, url, from_us=from_us if movers else None)
        usage = usage.where(usage["settled_us"] < to_us)
        output.note("adding up")
        if movers:
            found = throughput.movers(usage, to_us=to_us, by=by)
        else:
            found = throughput.report(usage, from_us=from_us, to_us=to_us, by=by, every=every,
                                      tz=tz, limits=limits)  # fmt: skip
        if not movers:
            # A frame's times come to Python in the machine's own zone, without saying so.
            found = found.withColumn("at", unix_micros("at"))
        with explained():
            rows = [row.asDict() for row in found.collect()]
        if "tenant" in by:
            rows = [row | {"tenant": row["tenant"] or NOBODY} for row in rows]
        return [row | {"at": moment(row["at"])} if "at" in row else row for row in rows]
    finally:
        session.stop(spark)


def _refuse_holes(url: str, lake: Path | None, from_us: int, to_us: int) -> None:
    """Refuse a range that is not there as a whole, before Spark is started, which takes longer."""
    from late_spark import lake as lakes
    from late_spark import live
    from late_spark.bounds import Bounds

    if lake is None:
        live.plan(url, "usage", Bounds(from_us=from_us))
        return
    manifest = lakes.load(lake)
    if manifest is None:
        raise ConfigError(f"--lake {lake} is no lake")
    manifest.covers(from_us, to_us)
    live.plan(url, "usage", Bounds(), after=manifest.after())


def _write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the whole file, or none of it."""
    with output.draft_of(out) as draft:
        if out.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.Table.from_pylist(rows), draft)
        else:
            from late_spark.tables import safe

            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(list(rows[0]) if rows else ["at"])
            for row in rows:
                # A tenant's name is a stranger's, and no formula.
                writer.writerow(safe(v) if isinstance(v, str) else v for v in row.values())
            draft.write_text(text.getvalue(), encoding="utf-8")


def _table(rows: list[dict[str, Any]], by: list[str], *, movers: bool) -> None:
    if movers:
        columns = {name: f"{name}>" for name in ("before", "after", "change", "change_share")}
    else:
        columns = {"at": "at", **{k: v for k, v in SHOWN.items() if k != "at"}}
    chosen = [name for name in ("at", *by) if name in columns or name in by]
    chosen += [name for name in columns if name not in chosen]
    titles = [columns.get(name, name) for name in chosen]
    output.table(
        "Movers" if movers else "Throughput",
        titles,
        [[_text(row[name]) for name in chosen] for row in rows],
    )


def _text(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:%Y-%m-%d %H:%MZ}" if isinstance(value, datetime) else value
