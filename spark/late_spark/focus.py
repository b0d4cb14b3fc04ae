"""Bills in FOCUS columns (FinOps Open Cost and Usage Specification, 1.x): read and checked.

Rows are matched to lines by the price book's rules; a row that no rule fits is not dropped but
stays unallocated, and the report names its service.

Source: the columns and their meaning are those of the FOCUS specification.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from late.errors import ConfigError
from late_spark import money
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


def load(paths: Sequence[Path], book: PriceBook) -> list[Charge]:
    """Read all rows of all bills as charges.

    Raises:
        ConfigError: a column is missing, a cell cannot be read, a currency is not the price
            book's, or two files bill the same period of the same account.
    """
    found: list[Charge] = []
    billed: dict[tuple[str, str, int], Path] = {}
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise ConfigError(f"bill {path} is given twice")
        before = len(found)
        for number, row in rows(path, book):
            where = f"bill {path}:{number}"
            period = _time(row, "BillingPeriodStart", where)
            account = (row.get("ProviderName", ""), row["BillingAccountId"], period)
            other = billed.setdefault(account, path)
            if other != path:
                raise ConfigError(
                    f"bills {other} and {path} overlap: both have the billing period "
                    f"{iso(period)} of the account {row['BillingAccountId']}"
                )
            found.extend(_charges(row, book, where))
        if len(found) == before:
            raise ConfigError(f"bill {path} has no rows")
    return found


def rows(path: Path, book: PriceBook) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of a bill.

    Raises:
        ConfigError: it cannot be read, or a column is missing.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            if not columns:
                raise ConfigError(f"bill {path} is empty")
            for column in (*REQUIRED, book.bill.cost):
                if column not in columns:
                    raise ConfigError(f"bill {path} has no column {column}: is it FOCUS 1.x?")
            named = {name.split(".", 1)[0] for rule in book.bill.rules for name in rule.match}
            for column in sorted(named - set(columns)):
                raise ConfigError(
                    f"bill {path} has no column {column}, which a rule wants to match"
                )
            for row in reader:
                if None in row or None in row.values():
                    raise ConfigError(
                        f"bill {path}:{reader.line_num} has not as many cells as columns"
                    )
                # The specification has no text for null; exports write it out.
                yield reader.line_num, {k: "" if v == "NULL" else v for k, v in row.items()}
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(f"bill {path}: {getattr(error, 'strerror', None) or error}") from None


def _charges(row: dict[str, str], book: PriceBook, where: str) -> Iterable[Charge]:
    currency = row["BillingCurrency"]
    if currency != book.currency:
        raise ConfigError(
            f"{where}: BillingCurrency is {currency or 'empty'}, and the price book is in "
            f"{book.currency}"
        )
    if not row[book.bill.cost].strip():
        # A cost that is not known is not zero; some exports have only some of the cost columns.
        raise ConfigError(f"{where}: {book.bill.cost} is empty: choose another column (bill.cost)")
    amount = money.units(row[book.bill.cost], f"{where}: {book.bill.cost}")
    found = parts(row, book, where)
    amounts = money.split(amount, [percent for _, percent in found])
    for (charge, _), part in zip(found, amounts, strict=True):
        yield replace(charge, amount=part)


def parts(row: Mapping[str, str], book: PriceBook, where: str) -> list[tuple[Charge, int]]:
    """Return what a row is: charges without an amount, and the percent that each is of it."""
    start, end = (_time(row, f"ChargePeriod{end}", where) for end in ("Start", "End"))
    if end < start:
        raise ConfigError(f"{where}: ChargePeriodEnd {iso(end)} is before its start {iso(start)}")
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
        cell = _tag(row.get(name, ""), tag) if tag else row.get(name, "")
        if not fnmatchcase(cell, pattern):
            return False
    return True


def _tag(text: str, tag: str) -> str:
    try:
        tags = json.loads(text) if text else {}
    except ValueError:
        return ""
    return str(tags.get(tag, "")) if isinstance(tags, dict) else ""


def _time(row: Mapping[str, str], column: str, where: str) -> int:
    """FOCUS has all times in UTC, with and without saying so."""
    try:
        found = datetime.fromisoformat(row[column].strip())
    except ValueError:
        raise ConfigError(f"{where}: {column} {row[column][:64]!r} is not a time") from None
    return microseconds(found if found.tzinfo else found.replace(tzinfo=UTC))
