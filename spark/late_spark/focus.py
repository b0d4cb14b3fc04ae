"""Bills as charges: rows of FOCUS (`bills`) checked, and matched to lines by the price book.

A row that no rule fits is not dropped but stays unallocated, and the report names its service.

Source: the columns and their meaning are those of the FOCUS specification, 1.0 to 1.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from late.errors import ConfigError
from late_spark import money
from late_spark.bills import dialects, files, overlap, reader
from late_spark.calendar import iso, microseconds
from late_spark.charges import Charge, Line
from late_spark.pricebook import PriceBook, Rule

REQUIRED = (
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ServiceName",
)
NO_RULE = "no rule of the price book fits"
_LATER_NAMES = {"ProviderName": "ServiceProviderName"}
"""What FOCUS 1.3 calls a column of before."""


def load(paths: Sequence[Path], book: PriceBook) -> list[Charge]:
    """Read all rows of all bills as charges.

    Files of one folder are parts of one bill. Two bills may have the same period of an account if
    one of them has nothing but corrections for it.

    Raises:
        ConfigError: a column is missing, a cell cannot be read, a currency or an account is not
            the price book's, bills or parts overlap.
    """
    found: list[Charge] = []
    seen = overlap.Seen()
    column = cost_column(paths, book)
    for delivery, parts in files.deliveries(paths):
        for path in parts:
            before = len(found)
            for number, row in rows(path, book):
                where = f"bill {path}:{number}"
                charges = _charges(row, book, column, where)
                seen.add(delivery, path, row, charges[0])
                found.extend(charges)
            if len(found) == before and len(parts) == 1:
                raise ConfigError(f"bill {path} has no rows: fetch it again, or take it away")
            seen.check(delivery, path)
    return found


def cost_column(paths: Sequence[Path], book: PriceBook) -> str:
    """Return the column that is divided: the price book's, else that which spreads purchases.

    Raises:
        ConfigError: a bill cannot be read.
    """
    if book.bill.cost is not None:
        return book.bill.cost
    spread = all("EffectiveCost" in columns(path) for path in files.every(paths))
    return "EffectiveCost" if spread else "BilledCost"


def columns(path: Path) -> tuple[str, ...]:
    """Return the columns of a file, as FOCUS has them.

    Raises:
        ConfigError: it cannot be read.
    """
    return dialects.of(reader.table(path).columns, path).columns


def rows(path: Path, book: PriceBook) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line or row, row) of a file.

    Raises:
        ConfigError: it cannot be read, or a column is missing.
    """
    table = reader.table(path)
    dialect = dialects.of(table.columns, path)
    for column in (*REQUIRED, book.bill.cost or "BilledCost"):
        if column not in dialect.columns:
            raise ConfigError(
                f"bill {path} has no column {column}: is it FOCUS 1.x, a billing export of "
                "Google or CUR 2.0 of AWS?"
            )
    named = {name.split(".", 1)[0] for rule in book.bill.rules for name in rule.match}
    for column in sorted(named - set(dialect.columns)):
        if _LATER_NAMES.get(column) not in dialect.columns:
            raise ConfigError(f"bill {path} has no column {column}, which a rule wants to match")
    for number, cells in reader.rows(table):
        row = dict(zip(table.columns, cells, strict=True))
        yield number, dialect.row(row, f"bill {path}:{number}")


def _charges(row: Mapping[str, str], book: PriceBook, column: str, where: str) -> list[Charge]:
    currency, account = row["BillingCurrency"], row["BillingAccountId"]
    if currency != book.currency:
        raise ConfigError(
            f"{where}: BillingCurrency is {currency or 'empty'}, and the price book is in "
            f"{book.currency}: give a price book of that currency, or convert the bill"
        )
    if book.bill.accounts and account not in book.bill.accounts:
        raise ConfigError(
            f"{where}: BillingAccountId is {account or 'empty'}, and the price book takes "
            f"{', '.join(book.bill.accounts)} (bill.accounts): add it, or take the bill away"
        )
    if not row[column].strip():
        # A cost that is not known is not zero; some exports have only some of the cost columns.
        raise ConfigError(f"{where}: {column} is empty: choose another column (bill.cost)")
    amount = money.units(row[column], f"{where}: {column}")
    on_invoice = row.get("BilledCost", "").strip()
    invoiced = money.units(on_invoice, f"{where}: BilledCost") if on_invoice else amount
    period = (_time(row, "BillingPeriodStart", where), _time(row, "BillingPeriodEnd", where))
    found = parts(row, book, where)
    percents = [percent for _, percent in found]
    split = zip(found, money.split(amount, percents), money.split(invoiced, percents), strict=True)
    return [
        replace(
            charge, amount=part, invoiced=billed, period=period,
            purchase=row.get("ChargeCategory") == "Purchase",
            correction=row.get("ChargeClass") == "Correction",
        )
        for (charge, _), part, billed in split
    ]  # fmt: skip


def parts(row: Mapping[str, str], book: PriceBook, where: str) -> list[tuple[Charge, int]]:
    """Return what a row is: charges without an amount, and the percent that each is of it."""
    start, end = (_time(row, f"ChargePeriod{end}", where) for end in ("Start", "End"))
    if end < start:
        raise ConfigError(f"{where}: ChargePeriodEnd {iso(end)} is before its start {iso(start)}: "
                          "fetch the bill again")  # fmt: skip
    rule = next((rule for rule in book.bill.rules if fits(rule, row)), None)
    service, region = row["ServiceName"], row.get("RegionId", "")
    if rule is None:
        line = Line(service or "(no service)", service)
        return [(Charge(line, start, end, 0, {}, NO_RULE), 100)]
    line = Line(rule.line, service, region)
    if rule.ignore is not None:
        return [(Charge(line, start, end, 0, {}, rule.ignore), 100)]
    ours = Charge(line, start, end, 0, rule.drivers)
    if rule.share == 100:
        return [(ours, 100)]
    reason = f"{100 - rule.share} percent are others', says the price book"
    others = Charge(line, start, end, 0, {}, reason)
    return [(ours, rule.share), (others, 100 - rule.share)]


def fits(rule: Rule, row: Mapping[str, str]) -> bool:
    """Return True if every pattern of the rule fits the row."""
    for column, pattern in rule.match.items():
        name, _, tag = column.partition(".")
        cell = row.get(name) or row.get(_LATER_NAMES.get(name, ""), "")
        cell = _tag(cell, tag) if tag else cell
        if not fnmatchcase(cell, pattern):
            return False
    return True


def _tag(text: str, tag: str) -> str:
    try:
        tags = json.loads(text) if text else {}
    except ValueError:
        return ""
    found = tags.get(tag) if isinstance(tags, dict) else None
    return "" if found is None else str(found)


def _time(row: Mapping[str, str], column: str, where: str) -> int:
    """FOCUS has all times in UTC, with and without saying so."""
    try:
        found = datetime.fromisoformat(row[column].strip())
    except ValueError:
        raise ConfigError(f"{where}: {column} {row[column][:64]!r} is not a time such as "
                          "2026-10-01T00:00:00Z") from None  # fmt: skip
    return microseconds(found if found.tzinfo else found.replace(tzinfo=UTC))
