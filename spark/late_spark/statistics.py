"""The statistics of the reports, with days as samples. Pure; it needs no library.

A day is the unit: tasks of one day share its load, its deployments and its incidents, so a million
of them are not a million independent samples. Days are not quite independent either; what one day
tells about the next (lag-1 autocorrelation) takes from their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import exp, inf, lgamma, log, sqrt
from statistics import fmean, variance


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; the bounds are infinite where there is too little
    to say anything."""

    estimate: float
    low: float
    high: float
    confidence: float

    @property
    def clear(self) -> bool:
        """True if zero is outside: the difference is more than the variation of the days."""
        return not self.low <= 0 <= self.high


def difference(
    before: Sequence[float], after: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Mean after minus mean before, by Welch's unequal variances.

    Source: B. L. Welch, 1947; the effective number of days is that of a first-order
    autoregression.
    """
    estimate = fmean(after) - fmean(before) if before and after else 0.0
    if len(before) < 2 or len(after) < 2:
        return Interval(estimate, -inf, inf, confidence)
    sizes = [effective(before), effective(after)]
    errors = [variance(days) / n for days, n in zip((before, after), sizes, strict=True)]
    error = sum(errors)
    if error == 0:
        return Interval(estimate, estimate, estimate, confidence)
    freedom = error**2 / sum(e**2 / (n - 1) for e, n in zip(errors, sizes, strict=True))
    reach = student(confidence, max(1.0, freedom)) * sqrt(error)
    return Interval(estimate, estimate - reach, estimate + reach, confidence)


def effective(days: Sequence[float]) -> float:
    """Return the number of independent days: n (1 - r) / (1 + r), at least 2, at most n."""
    n = len(days)
    mean = fmean(days)
    spread = sum((day - mean) ** 2 for day in days)
    if n < 4 or spread == 0:
        return float(n)
    together = sum((a - mean) * (b - mean) for a, b in pairwise(days))
    r = max(0.0, together / spread)
    return max(2.0, n * (1 - r) / (1 + r))


@lru_cache(256)
def student(confidence: float, freedom: float) -> float:
    """The two-sided quantile of Student's t: |t| is below it with this probability."""
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        inside = 1 - _beta(freedom / (freedom + middle**2), freedom / 2, 0.5)
        low, high = (middle, high) if inside < confidence else (low, middle)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    tiny = 1e-300
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1), tiny)
    total = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _not_zero(1 + step * d, tiny)
            c = _not_zero(1 + step / c, tiny)
            total *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * total / a


def _not_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
