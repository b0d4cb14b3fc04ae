"""Money: exact, whatever is divided and rounded."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late_spark import money

from late.errors import ConfigError

AMOUNTS = st.integers(-(10**20), 10**20)


@given(AMOUNTS, st.lists(st.integers(0, 10**15), min_size=1, max_size=30).filter(any))
def test_parts_add_up_and_are_within_a_unit_of_the_share(amount: int, weights: list[int]) -> None:
    parts = money.split(amount, weights)
    assert sum(parts) == amount
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - Fraction(amount * weight, sum(weights))) < 1
        assert weight or part == 0


def test_the_largest_remainders_get_the_rest() -> None:
    # 10 by 1:1:1 is 3.33 each; 100 by 5:3:3:2 is 38.46, 23.08, 23.08, 15.38.
    assert money.split(10, [1, 1, 1]) == [4, 3, 3]
    assert money.split(100, [5, 3, 3, 2]) == [39, 23, 23, 15]
    assert money.split(-10, [1, 1, 1]) == [-4, -3, -3]


@given(st.lists(AMOUNTS, min_size=1, max_size=30), st.sampled_from([0, 2, 3]))
def test_cents_add_up_to_the_rounded_total(amounts: list[int], digits: int) -> None:
    cents = money.in_minor(amounts, digits)
    step = 10 ** (money.DIGITS - digits)
    assert abs(sum(cents) * step - sum(amounts)) * 2 <= step
    assert all(abs(c * step - a) < step for c, a in zip(cents, amounts, strict=True))


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0.00000080000", 800_000),
        ("12", 12 * money.ONE),
        ("-3.5", -3_500_000_000_000),
        ("1e-7", 100_000),
        ("0.0000000000005", 0),  # half a unit, to even
        ("0.0000000000015", 2),
    ],
)
def test_amounts_are_read_exactly(text: str, amount: int) -> None:
    assert money.units(text, "x") == amount


@pytest.mark.parametrize("text", ["", "abc", "NaN", "inf", "1,5", "1e40"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bill\.csv:7: BilledCost"):
        money.units(text, "bill.csv:7: BilledCost")


def test_how_amounts_are_shown() -> None:
    assert money.shown(-123_456, 2) == "-1,234.56"
    assert money.shown(1_234, 0) == "1,234"
    assert money.shown(5, 3) == "0.005"
    assert money.exact(800_000) == "0.0000008"
    assert money.exact(12 * money.ONE) == "12"
    assert money.exact(0) == "0"
    assert money.decimal(-1) == Decimal("-1E-12")
    assert [money.minor(n * 10**9, 2) for n in (5, 15, 25, -5, -15)] == [0, 2, 2, 0, -2]
    assert money.minor_digits("JPY") == 0
