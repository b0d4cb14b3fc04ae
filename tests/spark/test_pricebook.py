"""Price books: what is read, and that every mistake names its file and field."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from late_spark import drivers, money, owners, pricebook
from late_spark.close import budgets

from late.errors import ConfigError

BOOK = """
version: 1
name: production
currency: USD
time_zone: America/New_York
prices:
  - line: nodes
    unit: node_hour
    price: 0.10
    metric: {name: nodes, region: us-east1}
    from: 2026-01-01
    to: 2026-07-01
    drivers: {writes: 60, idle: 40}
  - line: nodes
    unit: node_hour
    price: 0.90
    quantity: 3
    from: 2026-07-01
bill:
  rules:
    - line: database
      match: {ServiceName: "Cloud Spanner*"}
      drivers: {writes: 100}
"""


def book(tmp_path: Path, text: str) -> pricebook.PriceBook:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    return pricebook.load(path)


def test_prices_are_read_as_they_are_written(tmp_path: Path) -> None:
    found = book(tmp_path, BOOK)
    assert found.prices[0].price == Decimal("0.10")
    assert found.prices[0].drivers == {"writes": 60, "idle": 40}
    assert found.prices[1].quantity == 3
    assert found.tz.key == "America/New_York"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    price: 0.10", "    prise: 0.10", r"unknown field `prise` - at `\$.prices\[0\]`"),
        ("    price: 0.10\n", "", r"missing required field `price` - at `\$.prices\[0\]`"),
        ("price: 0.10", "price: -1", r"prices\[0\] \(nodes\).price is negative"),
        ("price: 0.10", "price: cheap", r"at `\$.prices\[0\].price`"),
        ("price: 0.10", "price: .inf", r"prices\[0\]"),
        ("quantity: 3", "quantity: 3\n    metric: {name: nodes}", "either quantity or metric"),
        ("unit: node_hour\n    price: 0.90", "unit: gb\n    price: 0.90", "needs a metric"),
        ("idle: 40}", "idle: 41}", "drivers add up to 101 percent"),
        ("idle: 40}", "moon: 4}", r"Invalid enum value 'moon'"),
        ("currency: USD", "currency: dollars", r"at `\$.currency`"),
        ("America/New_York", "America/Nowhere", "time_zone: there is no time zone"),
        ("from: 2026-07-01", "from: 2026-06-30", "the prices of 'nodes' overlap at 2026-06-30"),
        ("to: 2026-07-01", "to: 2025-07-01", "is not before to"),
        ("to: 2026-07-01", "to: soon", "prices.0. .nodes..to: 'soon' is no month"),
        ('{ServiceName: "Cloud Spanner*"}', "{}", "match is empty"),
        ("version: 1", "version: 2", r"at `\$.version`"),
        ("version: 1", "version: 1\nversion: 1", "'version' is there twice"),
        ("version: 1", "version: [1", "is not YAML"),
        ("version: 1", "? [a, b]\n: 1\nversion: 1", "a key is a list or a mapping"),
        ("version: 1", "version: 1\nbudget_per_month: -5", "budget_per_month is negative: -5"),
        ("version: 1", "version: 1\nbudget_per_month: NaN", "budget_per_month: 'NaN' is not an"),
        ("version: 1", "version: 1\nfeasible: {cpu_leader: 0}", r"> 0.0 - at `\$.feasible.cpu_l"),
        (BOOK, "# later", "is empty"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert BOOK.count(old) == 1
    with pytest.raises(ConfigError, match=said) as caught:
        book(tmp_path, BOOK.replace(old, new))
    assert str(caught.value).startswith(f"price book {tmp_path / 'prices.yaml'}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        pricebook.load(tmp_path / "none.yaml")


def test_the_books_in_the_documents_are_right(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    budgeted, owned, prices = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    found = book(tmp_path, prices)
    assert {price.line for price in found.prices} >= {"database nodes", "storage", "interconnect"}
    (tmp_path / "owners.yaml").write_text(owned)
    owner_of = owners.load(tmp_path / "owners.yaml")
    assert owner_of("mail", "newsletter.send", "x") == "growth"
    assert owner_of("mail", "other", "x") == "x"
    (tmp_path / "budgets.yaml").write_text(budgeted)
    december = budgets.load(tmp_path / "budgets.yaml", "2026-12", "owner")
    assert (december.total, december.parts["payments"]) == (12_000 * money.ONE, 7_000 * money.ONE)
    assert december.parts["growth"] == 2_500 * money.ONE
    assert all(f"| `{driver}` |" in text for driver in drivers.MEANING)


@pytest.mark.parametrize(
    ("quantity", "measured", "replicas", "said"),
    [
        (None, None, 1, "0.95 USD per hour"),
        (1, None, 1, "0.95 USD per hour"),
        (9, None, 1, "0.95 USD per hour, 9 at all times"),
        (9, None, 3, "0.95 USD per hour, 9 at all times, in each of 3 replicas"),
        (None, "nodes", 1, "0.95 USD per hour of measured nodes"),
        (None, "nodes", 3, "0.95 USD per hour of measured nodes, in each of 3 replicas"),
        (None, None, 2, "0.95 USD per hour, in each of 2 replicas"),
    ],
)
def test_a_price_is_said_in_words(
    quantity: int | None, measured: str | None, replicas: int, said: str
) -> None:
    price = pricebook.Price(
        line="nodes", unit="hour", price=Decimal("0.95"), replicas=replicas,
        quantity=None if quantity is None else Decimal(quantity),
        metric=None if measured is None else pricebook.Metric(name=measured),
    )  # fmt: skip
    assert price.said("USD") == said
