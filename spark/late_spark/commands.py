"""The steps of `late report …`: read, compute with pure functions, write a whole folder or nothing.

Runs in the command line, and unchanged under `spark-submit`: the session is the cluster's then.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from late.errors import ConfigError
from late_spark import (
    calendar,
    charges,
    drivers,
    efficiency,
    focus,
    folder,
    importers,
    owners,
    pricebook,
    session,
    usage_files,
)
from late_spark.calendar import Calendar
from late_spark.charges import Charge
from late_spark.cost import CostReport, dimensions, report
from late_spark.drivers import Used
from late_spark.pricebook import PriceBook

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Say = Callable[[str], None]


def quiet(_: str) -> None:
    """No progress."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The place of the usage: a store, a lake (with the store's tail if there is a `url`), or plain
    Parquet files of usage rows."""

    url: str | None = None
    lake: Path | None = None
    usage: Path | str | None = None

    def said(self, until_us: int | None = None) -> str:
        """Name the source. A lake alone says where it ends, if that is before `until_us`."""
        if self.usage is not None:
            return f"the files {self.usage}"
        if self.lake is None:
            return "the database"
        if self.url is not None:
            return f"the lake {self.lake} and the database behind it"
        from late_spark import lake

        # Days after its end look like days without work; whoever reads the report has to know.
        manifest = lake.load(self.lake)
        ends = max((each.last_us for each in manifest.journals), default=0) if manifest else 0
        if until_us is not None and ends >= until_us:
            return f"the lake {self.lake}"
        return f"the lake {self.lake}, which ends at {calendar.iso(ends)}"

    def check(self, days: Calendar) -> None:
        """Is all of the range to be had? Before Spark is started, which takes longer.

        Raises:
            ConfigError: no source, or two of them, or it is not there.
            JournalPruned: the journal or the lake misses something of the range.
        """
        if (self.url is None and self.lake is None) == (self.usage is None):
            raise ConfigError(
                "where is the usage? Give a database (--url, --lake) or --usage FILES"
            )
        from late_spark import lake, live
        from late_spark.bounds import Bounds

        if self.usage is not None:
            for place in (Path(self.usage), *Path(self.usage).parents):
                if lake.is_lake(place):
                    # Files that a compaction has replaced are still there: they would count twice.
                    raise ConfigError(f"--usage {self.usage}: {place} is a lake: give it as --lake")
            usage_files.check(self.usage)
        elif self.lake is None:
            assert self.url is not None
            live.plan(self.url, "usage", Bounds(from_us=days.from_us))
        else:
            manifest = lake.load(self.lake)
            if manifest is None:
                raise ConfigError(f"--lake {self.lake} is no lake: late lake export {self.lake}")
            manifest.covers(days.from_us, days.to_us)
            if self.url is not None:
                live.plan(self.url, "usage", Bounds(), after=manifest.after())


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options that every report has."""

    source: Source
    from_: str
    to: str
    prices: Path
    out: Path
    tz: str | None = None
    bills: Sequence[Path] = ()
    metrics: Sequence[Path] = ()
    leader_regions: Sequence[str] = ()
    owners: Path | None = None
    force: bool = False
    say: Say = field(default=quiet)


def frame(source: Source, days: Calendar) -> DataFrame:
    """The usage as a frame of the shape `schema.USAGE`, checked first.

    Raises:
        ConfigError, JournalPruned: see `Source.check`; or no Java.
    """
    source.check(days)
    from pyspark.sql import SparkSession

    from late_spark import lake, schema

    if SparkSession.getActiveSession() is None:
        # At the end and not after each report: whoever makes several pays for one start.
        atexit.register(_stop)
    spark = session.start(progress=sys.stderr.isatty())
    if source.lake is not None:
        return lake.frame(
            spark, source.lake, url=source.url, from_us=days.from_us, to_us=days.to_us
        )
    if source.url is not None:
        return lake.tail(spark, source.url, from_us=days.from_us, to_us=days.to_us)
    found = spark.read.parquet(str(source.usage))
    missing = [name for name in schema.USAGE.names if name not in found.columns]
    if missing:
        raise ConfigError(f"--usage {source.usage} has no column {missing[0]!r}: is it of late?")
    return found


def _stop() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is not None:
        session.stop(spark)


@session.explained()
def cost(asked: Asked, by: str, title: str | None = None) -> CostReport:
    """Write the cost report.

    Raises:
        ConfigError: bad input of any kind; nothing was written.
    """
    from late_spark import page, sheets

    folder.check(asked.out, force=asked.force)
    columns = dimensions(by)
    book, days, billed, measured = paid(asked)
    used = work(asked, days, usage(asked, days), columns, needed=not asked.bills)
    found = report(
        billed, used, days, title=title or f"What the work cost: {book.name}",
        currency=book.currency, by=columns, assumptions=assumed(asked, book),
        efficiency=measured,
    )  # fmt: skip
    about: dict[str, object] = {
        "report": "cost", "from": str(days.days[0]), "to": asked.to, "time_zone": days.tz.key,
        "currency": book.currency, "by": columns, "price_book": str(asked.prices),
    }  # fmt: skip
    asked.say(f"writing {asked.out}")
    with folder.writing(asked.out, about, force=asked.force) as draft:
        write_cost(found, draft, asked, book, billed)
        sheets.write(found, draft / "cost.xlsx")
        (draft / "index.html").write_text(page.cost(found), encoding="utf-8")
    return found


def write_cost(
    found: CostReport, draft: Path, asked: Asked, book: PriceBook, billed: Sequence[Charge]
) -> None:
    """Write the files of a cost report that programs read."""
    from late_spark import focus_split, tables

    tables.write(found, draft)
    if found.bridge is not None:
        tables.bridge(found.bridge, draft / "bridge.csv")
    if asked.bills:
        names = focus_split.columns_of(asked.bills)
        origins = focus_split.of_bills(asked.bills, book)
    else:
        names = list(focus_split.PRICED)
        origins = focus_split.of_prices(billed, found)
    focus_split.write(found, origins, names, draft / "focus.csv")


def paid(asked: Asked) -> tuple[PriceBook, Calendar, list[Charge], list[efficiency.Efficiency]]:
    """Read the charges, by the bill if there is one, else by prices, and the efficiency.

    All of this is read and checked before Spark is started, which takes longer.
    """
    asked.say("reading prices, bills and metrics")
    book = pricebook.load(asked.prices)
    tz = calendar.zone(asked.tz or book.time_zone, "--tz")
    days = Calendar.of(asked.from_, asked.to, tz)
    metrics = importers.load(asked.metrics, frozenset(asked.leader_regions))
    if asked.owners:
        owners.load(asked.owners)
    if asked.bills:
        billed = focus.load(asked.bills, book)
    else:
        billed = charges.priced(book, metrics, days, asked.prices)
    return book, days, billed, efficiency.measured(metrics, book.feasible, days)


def usage(asked: Asked, days: Calendar) -> DataFrame:
    """The usage that is asked about; see `frame`."""
    asked.say("starting Spark")
    return frame(asked.source, days)


def work(
    asked: Asked,
    days: Calendar,
    usage: DataFrame,
    by: Collection[str] = ("name",),
    *,
    needed: bool = True,
) -> list[Used]:
    """Read the work that was done, by day and key.

    Tenants are told apart only where the report is by tenant; tasks then only where it is by task
    as well, or an owners' file needs them: a tenant times a task is a number without a bound.

    Args:
        needed: refuse a range without any. What is billed was paid, whether anybody worked or not.
    """
    owner_of = owners.load(asked.owners) if asked.owners else None
    if "tenant" not in by:
        without = {"tenant"}
    else:
        without = set() if "name" in by or asked.owners else {"name"}
    asked.say(f"adding up the usage of {asked.source.said()}")
    used = drivers.collect(drivers.daily(usage, days, without), owner_of)
    if not used and needed:
        raise ConfigError(
            f"no usage between {calendar.iso(days.from_us)} and {calendar.iso(days.to_us)} in "
            f"{asked.source.said()}"
        )
    return used


def assumed(
    asked: Asked, book: PriceBook, days: Calendar | None = None
) -> Iterable[tuple[str, str]]:
    """List the sources of the figures, for the sheet of assumptions."""
    yield "Usage", asked.source.said(None if days is None else days.to_us)
    yield "Price book", f"{asked.prices}: {book.name}, in {book.currency}"
    if asked.bills:
        column = book.bill.cost or "EffectiveCost (BilledCost where a bill has none)"
        yield "Bills", f"{', '.join(map(str, asked.bills))}; column {column}"
        for rule in book.bill.rules:
            fits = " and ".join(f"{column} is {text}" for column, text in rule.match.items())
            if rule.ignore is not None:
                yield f"Bill rule: {rule.line}", f"{fits}: nobody bears it, {rule.ignore}"
                continue
            share = "" if rule.share == 100 else f"{rule.share} percent of it, "
            yield f"Bill rule: {rule.line}", f"{fits}: {share}{_parts(rule.drivers)}"
    else:
        for price in book.prices:
            yield f"Price: {price.line}", f"{price.said(book.currency)}; {_parts(price.drivers)}"
    for path in asked.metrics:
        yield "Metrics", str(path)
    if asked.owners:
        yield "Owners", str(asked.owners)


def _parts(parts: pricebook.Parts) -> str:
    if not parts:
        return "no driver: unallocated"
    return "divided by " + ", ".join(f"{name} {percent} %" for name, percent in parts.items())
