"""The days to come, from those that were: a trend in proportion, and the day of the week.

    log(cost of a day) = weekday + trend * day + noise

fitted by least squares over the last five weeks. Where a day costs nothing or less (credits), the
same is fitted to the cost itself. The interval has the noise of each coming day, the uncertainty
of the fit, and what one day tells about the next (lag-1 autocorrelation of what is left).

Source: prediction intervals of linear regression; the sum of days by the delta method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from math import exp, expm1, inf, sqrt
from typing import Any, NamedTuple

from late_spark.statistics import Interval, student

WINDOW_DAYS = 35
"""What was longer ago says little about the days to come."""
WEEKLY_FROM = 11
"""Days from which on weekdays are told apart, if each was seen: seven of them and a trend are eight
numbers to find."""

_DAYS_MIN = 3
_EXP_MAX = 700.0
"""Above, the exponential has no double."""


class Forecast(NamedTuple):
    """A month to its end, in the currency."""

    month: str
    so_far: float
    days_seen: int
    days_left: int
    """After the last day that is known."""
    days_before: int
    """Days of the month before the first that is known. Their cost is estimated, as of the days to
    come."""
    end: Interval
    budget: float | None

    def verdict(self) -> str:
        """Say where the month will be beside its budget, and how sure that is."""
        if self.budget is None:
            return "no budget is given"
        if self.end.low > self.budget:
            return "over budget, clearly"
        if self.end.high <= self.budget:
            return "within budget, clearly"
        over = self.end.estimate > self.budget
        return f"{'over' if over else 'within'} budget by the estimate; the interval has both"


def month(costs: Mapping[date, float], budget: float | None, confidence: float = 0.95) -> Forecast:
    """Forecast the month of the last known day. A budget is for all of it, so days of it that are
    not known are expected as those to come.

    Args:
        costs: of each known day, at least one; also of earlier months.
    """
    last = max(costs)
    first = last.replace(day=1)
    after = (first + timedelta(days=32)).replace(day=1)
    whole = [first + timedelta(days=n) for n in range((after - first).days)]
    known = [day for day in whole if day in costs]
    ahead = [day for day in whole if day not in costs]
    so_far = sum(costs[day] for day in known)
    coming = of_days(costs, ahead, confidence)
    end = Interval(so_far + coming.estimate, so_far + coming.low, so_far + coming.high, confidence)
    before = sum(day < known[0] for day in ahead)
    return Forecast(f"{last:%Y-%m}", so_far, len(known), len(ahead) - before, before, end, budget)


def of_days(
    costs: Mapping[date, float], ahead: Sequence[date], confidence: float = 0.95
) -> Interval:
    """Forecast the sum of some days that are not known. The bounds are infinite where fewer than
    three days are."""
    import numpy as np

    if not ahead:
        return Interval(0.0, 0.0, 0.0, confidence)
    known = _recent(costs)
    if len(known) < _DAYS_MIN:
        mean = sum(known.values()) / len(known) if known else 0.0
        return Interval(mean * len(ahead), -inf, inf, confidence)
    fit = _fitted(known)
    coming = design(ahead, list(known))
    each = coming @ fit.slopes
    if fit.in_proportion:
        # The mean of what is spread evenly in logarithms is above its middle.
        each = np.exp(np.minimum(each + fit.noise / 2, _EXP_MAX))
    # A falling line goes below zero, where no day has been if there are no credits.
    floor = 0.0 if min(known.values()) >= 0 else -inf
    estimate = float(np.maximum(each, floor).sum())
    pull = each if fit.in_proportion else np.ones(len(ahead))
    reach = pull @ coming
    spread = fit.noise * fit.together * float(reach @ fit.inverse @ reach + pull @ pull)
    error = student(confidence, fit.freedom) * sqrt(spread)
    if not fit.in_proportion:
        return Interval(estimate, max(floor, estimate - error), estimate + error, confidence)
    factor = exp(min(error / estimate, _EXP_MAX)) if estimate else 1.0
    return Interval(estimate, estimate / factor, estimate * factor, confidence)


def trend(values: Mapping[date, float], confidence: float = 0.95) -> Interval | None:
    """Return the growth in a week, as a part of the value: 0.07 is 7 percent. None where it has no
    proportion, or too few days are known."""
    known = _recent(values)
    if len(known) <= _DAYS_MIN or min(known.values()) <= 0:
        return None
    fit = _fitted(known)
    slope = 7 * float(fit.slopes[-1])
    error = 7 * sqrt(fit.noise * fit.together * float(fit.inverse[-1, -1]))
    error *= student(confidence, fit.freedom)
    middle, low, high = (
        expm1(min(each, _EXP_MAX)) for each in (slope, slope - error, slope + error)
    )
    return Interval(middle, low, high, confidence)


class _Fit(NamedTuple):
    """The regression over the days that are known."""

    in_proportion: bool
    slopes: Any
    inverse: Any
    freedom: int
    noise: float
    """Variance of what is left."""
    together: float
    """How much more a sum of days varies than if each were for itself."""


def _fitted(known: Mapping[date, float]) -> _Fit:
    import numpy as np

    days = list(known)
    values = np.array(list(known.values()))
    in_proportion = bool((values > 0).all())
    matrix = design(days, days)
    y = np.log(values) if in_proportion else values
    inverse = np.linalg.pinv(matrix.T @ matrix)
    slopes = inverse @ matrix.T @ y
    rest = y - matrix @ slopes
    freedom = max(1, len(days) - matrix.shape[1])
    square = float(rest @ rest)
    r = float(rest[1:] @ rest[:-1]) / square if square else 0.0
    r = min(0.9, max(0.0, r))
    return _Fit(in_proportion, slopes, inverse, freedom, square / freedom, (1 + r) / (1 - r))


def _recent(costs: Mapping[date, float]) -> dict[date, float]:
    days = sorted(costs)
    return {day: costs[day] for day in days if (days[-1] - day).days < WINDOW_DAYS}


def design(days: Sequence[date], known: Sequence[date]) -> Any:
    """Return the matrix of the fit: a column for each weekday, or one for all, and the trend, in
    days from the middle of those known."""
    import numpy as np

    seen = [0] * 7
    for day in known:
        seen[day.weekday()] += 1
    middle = (known[0].toordinal() + known[-1].toordinal()) / 2
    trend = np.array([[day.toordinal() - middle] for day in days])
    if len(known) >= WEEKLY_FROM and min(seen):
        kinds = np.array([[float(day.weekday() == n) for n in range(7)] for day in days])
    else:
        kinds = np.ones((len(days), 1))
    return np.hstack([kinds, trend])
