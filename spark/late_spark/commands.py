"""The steps of `late report …`: read, compute with pure functions, write a whole folder or nothing.

Runs in the command line, and unchanged under `spark-submit`: the session is the cluster's then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    place,
    pricebook,
)
from late_spark.calendar import Calendar
from late_spark.charges import Charge
from late_spark.cost import CostReport, dimensions, report
from late_spark.drivers import Used
from late_spark.place import Source
from late_spark.pricebook import PriceBook
from late_spark.relation import Relation
from late_spark.spark_errors import explained

Say = Callable[[str], None]


def quiet(_: str) -> None:
    """No progress."""


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


@explained()
def cost(asked: Asked, by: str, title: str | None = None) -> CostReport:
    """Write the cost report.

    Raises:
        ConfigError: bad input of any kind; nothing was written.
    """
    from late_spark import page, sheets

    folder.check(asked.out, force=asked.force)
    columns = dimensions(by)
    book, days, billed, measured = paid(asked)
    of_range(asked, days, billed)
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

    All of this is read and checked before the usage is read, which takes longer.
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


def of_range(asked: Asked, days: Calendar, billed: Sequence[Charge]) -> None:
    """Refuse bills of which nothing lies in the range: they are of another month.

    Raises:
        ConfigError: there are bills, and nothing of them lies in it.
    """
    if not asked.bills or any(charges.within(each, days) for each in billed):
        return
    said = f"no bill has anything of {days.days[0]} to {days.days[-1]}"
    if billed:
        first = days.day(min(each.start_us for each in billed))
        last = days.day(max(max(each.start_us, each.end_us - 1) for each in billed))
        said += f" ({', '.join(map(str, asked.bills))}: {first} to {last})"
    raise ConfigError(f"{said}: give the bill of these days, or another --from and --to")


def usage(asked: Asked, days: Calendar) -> Relation:
    """Open the usage that is asked about; see `place.opened`."""
    return place.opened(asked.source, days.from_us, days.to_us, asked.say)


def work(
    asked: Asked,
    days: Calendar,
    usage: Relation,
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
