"""Money as integers: parsed, split and rounded so that sums are exact.

An amount is a whole number of *units*, 10^-12 of the currency. Clouds bill in fractions of a cent
(a queue request costs 0.0000004 USD), so cents are too coarse to add up, and floating point is
not exact. People see the currency's own smallest unit, rounded once, at the end, so that the
rounded parts add up to the rounded total (`in_minor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext

from late.errors import ConfigError

DIGITS = 12
ONE = 10**DIGITS
"""Units in one of the currency."""
LARGEST = 10**12 * ONE
"""Beyond this an amount is a mistake; it also is what decimal(38, 12) holds with room for sums."""

_NO_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_THREE_DECIMALS = "BHD IQD JOD KWD LYD OMR TND"
_MINOR_DIGITS = {
    **dict.fromkeys(_NO_DECIMALS.split(), 0),
    **dict.fromkeys(_THREE_DECIMALS.split(), 3),
}
"""Currencies whose smallest unit is not a hundredth (ISO 4217)."""


def minor_digits(currency: str) -> int:
    """Return the number of decimals of this currency."""
    return _MINOR_DIGITS.get(currency, 2)


def units(text: str, what: str) -> int:
    """An amount of the currency in units; decimals beyond the twelfth are rounded half to even.

    Args:
        what: names file, row and field in the error.

    Raises:
        ConfigError: not a number, not finite, or beyond a trillion.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise ConfigError(f"{what}: {text[:64]!r} is not an amount") from None
    if not value.is_finite() or abs(value) > LARGEST // ONE:
        raise ConfigError(f"{what}: {text[:64]!r} is not an amount of money")
    with localcontext() as context:
        context.prec = 60
        return int(value.scaleb(DIGITS).to_integral_value(ROUND_HALF_EVEN))


def decimal(amount: int) -> Decimal:
    """An amount in units as an exact decimal of the currency."""
    with localcontext() as context:
        context.prec = 60
        return Decimal(amount).scaleb(-DIGITS)


def exact(amount: int) -> str:
    """Plain notation without trailing zeros, as bills have it: `0.0000004`."""
    text = f"{decimal(amount):.{DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


def split(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide an amount by weights so that the parts add up to it exactly.

    Largest remainder: everyone gets the whole units of their share, and those whose share was cut
    by most get one more each. Ties go to whoever comes first, so the order must be stable. A
    credit (a negative amount) is split as the charge would be.

    Args:
        weights: none negative, at least one positive.

    Source: Hamilton's method of apportionment.
    """
    total = sum(weights)
    assert total > 0, "nothing to divide by"
    assert min(weights) >= 0, "a negative weight"
    size = abs(amount)
    parts = [size * weight // total for weight in weights]
    left = size - sum(parts)
    if left:
        # The remainders are compared as integers: size * weight mod total.
        by_remainder = sorted(range(len(weights)), key=lambda i: -(size * weights[i] % total))
        for index in by_remainder[:left]:
            parts[index] += 1
    return parts if amount >= 0 else [-part for part in parts]


def minor(amount: int, digits: int) -> int:
    """One amount in the currency's smallest unit, half to even."""
    step: int = 10 ** (DIGITS - digits)
    whole, rest = divmod(amount, step)
    return whole + (2 * rest > step or (2 * rest == step and whole % 2 == 1))


def in_minor(amounts: Sequence[int], digits: int, total: int | None = None) -> list[int]:
    """Round all amounts to the currency's smallest unit; they add up to the rounded sum.

    Each is rounded down or up, never further. The ones with the most to lose are rounded up.

    Args:
        total: what they are to add up to instead, where another table already shows it: the sum
            rounded as a part of something larger may be a cent off.
    """
    step = 10 ** (DIGITS - digits)
    down = [amount // step for amount in amounts]
    if not down:
        return down
    left = (minor(sum(amounts), digits) if total is None else total) - sum(down)
    by_rest = sorted(range(len(amounts)), key=lambda i: -(amounts[i] % step))
    every, more = divmod(left, len(down))
    found = [cents + every for cents in down]
    for index in by_rest[:more]:
        found[index] += 1
    return found


def shown(cents: int, digits: int) -> str:
    """`1,234.50` of so many of the smallest unit."""
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 10**digits)
    return f"{sign}{whole:,}" + (f".{rest:0{digits}}" if digits else "")


def plain(cents: int, digits: int) -> str:
    """`1234.50`, for programs."""
    return shown(cents, digits).replace(",", "")
