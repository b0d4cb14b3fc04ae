"""The price book: what is paid for, what it costs, and by which drivers it is divided.

A YAML file, checked strictly: a field that is not known is refused, for a misspelt price would be
a cost that nobody bears. Every error names the file and the field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import msgspec

from late.errors import ConfigError
from late_spark import calendar, money

Driver = Literal["tasks", "writes", "reads", "bytes", "busy", "retries", "idle"]
"""The quantity that divides an amount; `drivers.MEANING` says how each is measured."""
Part = Annotated[int, msgspec.Meta(ge=0, le=100)]
Parts = dict[Driver, Part]
"""Percent by driver. What is missing from 100 stays unallocated, and the report says so."""
Unit = Literal[
    "node_hour",
    "processing_unit_hour",
    "core_hour",
    "hour",
    "gb_month",
    "gib_month",
    "gb",
    "gib",
    "million",
    "month",
]
"""The unit of a price. The first six are levels (so many nodes, GB) times hours, or shares of their
month; `gb`, `gib` (of bytes) and `million` are flows, added up; `month` is a fee, spread over its
seconds."""

FLOWS = frozenset({"gb", "gib", "million"})
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The measured series that gives the quantity."""

    name: Name
    region: str | None = None
    role: str | None = None
    resource: str | None = None


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing that is paid for."""

    line: Name
    unit: Unit
    price: Decimal
    quantity: Decimal | None = None
    """So many, all the time; else `metric`."""
    metric: Metric | None = None
    replicas: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """The quantity is that of one replica; it is paid for this often."""
    region: str = ""
    role: Literal["", "leader", "replica"] = ""
    service: str = ""
    from_: str | None = msgspec.field(default=None, name="from")
    """The price holds from this local day; several prices of one line follow each other."""
    to: str | None = None
    drivers: Parts = {}

    def said(self, currency: str) -> str:
        """Say in words what is paid for which quantity."""
        words = f"{self.price} {currency} per {self.unit}"
        if self.metric is not None:
            words += f" of measured {self.metric.name}"
        elif self.quantity not in (None, 1):
            words += f", {self.quantity} at all times"
        return words if self.replicas == 1 else f"{words}, in each of {self.replicas} replicas"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rows of a bill that make a line, and their owner. The first rule that fits wins."""

    line: Name
    match: dict[str, str]
    """FOCUS column -> pattern with `*` and `?`; all must fit. `Tags.team` looks into the tags."""
    share: Part = 100
    """Percent of the charge that is this deployment's; the rest is somebody else's."""
    ignore: str | None = None
    """Why these rows are none of this deployment's cost."""
    drivers: Parts = {}


class BillRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cost: Literal["BilledCost", "EffectiveCost", "ContractedCost", "ListCost"] | None = None
    """None: EffectiveCost, which spreads what was bought ahead, if all bills have it."""
    accounts: list[str] = []
    """The only billing accounts that may be billed; none: all."""
    rules: list[Rule] = []


Best = Annotated[float, msgspec.Meta(gt=0)]


class Feasible(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best that one may hope for; without it the best hour of the range is taken."""

    queries_per_core: Best | None = None
    users_per_core: Best | None = None
    reads_per_write: Best | None = None
    cpu_leader: Best | None = None
    cpu_replica: Best | None = None


class PriceBook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: Literal[1]
    name: Name
    currency: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]
    time_zone: str = "UTC"
    prices: list[Price] = []
    bill: BillRules = BillRules()
    feasible: Feasible = Feasible()
    budget_per_month: Decimal | None = None

    @property
    def tz(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)


def load(path: Path) -> PriceBook:
    """Read and check a price book.

    Raises:
        ConfigError: unreadable, not YAML, an unknown field, a value out of range, prices of one
            line that overlap.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"price book {path}: {_reason(error)}") from None
    try:
        found = yaml.load(text, unique_loader())  # A SafeLoader. # nosec B506
    except yaml.YAMLError as error:
        raise ConfigError(
            f"price book {path} is not YAML: {' '.join(str(error).split())}"
        ) from None
    if found is None:
        raise ConfigError(f"price book {path} is empty: it needs prices, or rules for a bill")
    return check(found, path)


def check(found: object, path: Path | str) -> PriceBook:
    """Check what was read, and make it a price book.

    Raises:
        ConfigError: see `load`.
    """
    try:
        book = msgspec.convert(found, PriceBook, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"price book {path}: {error}") from None
    calendar.zone(book.time_zone, f"price book {path}: time_zone")
    if book.budget_per_month is not None:
        budget(str(book.budget_per_month), f"price book {path}: budget_per_month")
    for index, price in enumerate(book.prices):
        _price(price, book, f"price book {path}: prices[{index}] ({price.line})")
    for index, rule in enumerate(book.bill.rules):
        what = f"price book {path}: bill.rules[{index}] ({rule.line})"
        _parts(rule.drivers, f"{what}.drivers")
        if not rule.match:
            raise ConfigError(f"{what}.match is empty: name a column, such as ServiceName: '*'")
    _no_overlap(book, path)
    return book


def budget(text: str, what: str) -> int:
    """A budget in units.

    Raises:
        ConfigError: no amount, or a negative one.
    """
    found = money.units(text, what)
    if found < 0:
        raise ConfigError(f"{what} is negative: {text}")
    return found


def _price(price: Price, book: PriceBook, what: str) -> None:
    money.units(str(price.price), f"{what}.price")
    if Decimal(str(price.price)) < 0:
        raise ConfigError(f"{what}.price is negative: {price.price}")
    if price.unit == "month":
        if price.metric is not None:
            raise ConfigError(f"{what}.metric: a fee per month has no measured quantity")
    elif (price.quantity is None) == (price.metric is None):
        raise ConfigError(f"{what}: give either quantity or metric")
    if price.quantity is not None:
        if price.unit in FLOWS:
            raise ConfigError(f"{what}.quantity: a price per {price.unit} needs a metric")
        if money.units(str(price.quantity), f"{what}.quantity") < 0:
            raise ConfigError(f"{what}.quantity is negative: {price.quantity}")
    _parts(price.drivers, f"{what}.drivers")
    if span(price, book.tz, what)[0] >= span(price, book.tz, what)[1]:
        raise ConfigError(f"{what}: from {price.from_} is not before to {price.to}")


def _parts(parts: Parts, what: str) -> None:
    total = sum(parts.values())
    if total > 100:
        raise ConfigError(f"{what} add up to {total} percent, at most 100")


def span(price: Price, tz: ZoneInfo, what: str = "price") -> tuple[int, int]:
    """Return the time when a price holds, [from, to) in microseconds."""
    start = 0 if price.from_ is None else calendar.moment(str(price.from_), f"{what}.from", tz)
    end = 2**62 if price.to is None else calendar.moment(str(price.to), f"{what}.to", tz)
    return start, end


def _no_overlap(book: PriceBook, path: Path | str) -> None:
    lines: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for price in book.prices:
        lines[price.line].append(span(price, book.tz))
    for line, spans in lines.items():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            if start < end:
                raise ConfigError(
                    f"price book {path}: the prices of {line!r} overlap at {calendar.iso(start)}"
                )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is no text"


def unique_loader() -> type:
    """YAML keeps the last of two equal keys without a word: one of two prices would be lost."""
    import yaml

    class Unique(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[object, object]:
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or a mapping", key_node.start_mark
                )
            if key in found:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            found[key] = loader.construct_object(value_node, deep=True)
        return found

    Unique.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    # Days and numbers stay the text that was written: 2026-03-01, and 0.10 without binary rounding.
    Unique.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers if tag.endswith((":null", ":bool"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Unique
