"""Rules to compare with: those of the open-source autoscalers, and one that knows the load. Pure.

The first three follow the documentation of `cloudspannerecosystem/autoscaler` (`poller/README.md`,
`scaler/README.md`) and not its code: a margin of 5 points, 5 minutes between steps out and 30
before one in, an overload from 90 % on. Like the originals they use the newest reading and the
present size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from late.autoscaler.decide import Observation, State, after_step, decide, effective_cpu
from late.autoscaler.forecast import forecast
from late.autoscaler.policy import Policy
from late.autoscaler.simulation.traces import MINUTE_US

OUT_US = 5 * MINUTE_US
IN_US = 30 * MINUTE_US
MARGIN = 5.0
OVERLOAD = 90.0


class Rule(Protocol):
    """One controller for one run; it may have a memory."""

    def want(self, seen: Observation, now_us: int) -> int:
        """Return the size to ask for; the present one for no change."""

    def applied(self, size: int, now_us: int) -> None:
        """Take note that the last wanted size was granted."""


class LatePolicy:
    """The rule of `late`: `decide`, its state, and the load of earlier weeks for the forecast."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._state = State()
        self._at: list[int] = []
        self._load: list[float] = []
        self._slot_forecast: tuple[int, float | None] = (-1, None)
        self.steps: Counter[str] = Counter()
        """The number of steps by each rule, which shows where a setting takes effect."""

    def want(self, seen: Observation, now_us: int) -> int:
        if seen.cpu is not None and seen.at_us is not None and self.policy.predict_weeks:
            if not self._at or seen.at_us > self._at[-1]:
                self._at.append(seen.at_us)
                self._load.append(seen.cpu * (seen.measured_size or seen.size) / 100)
            seen = msgspec.structs.replace(seen, forecast=self._forecast(now_us))
        self._last, self._state = decide(self.policy, seen, self._state, now_us)
        return self._last.to_size

    def _forecast(self, now_us: int) -> float | None:
        slot = now_us // (5 * MINUTE_US)
        if self._slot_forecast[0] != slot:
            lead_us = round(self.policy.predict_lead_s * 1e6)
            weeks = self.policy.predict_weeks
            found = forecast(self._at, self._load, now_us, weeks=weeks, lead_us=lead_us)
            self._slot_forecast = (slot, found)
        return self._slot_forecast[1]

    def applied(self, size: int, now_us: int) -> None:
        self.steps[self._last.rule] += 1
        self._state = after_step(self._last, self._state)


class Baseline:
    """The rule of another autoscaler: cool-downs and limits around one of the suggestions below."""

    def __init__(
        self, policy: Policy, suggest: Callable[[Policy, Observation, float], float]
    ) -> None:
        self._policy = policy
        self._suggest = suggest
        self._changed_us: int | None = None

    def want(self, seen: Observation, now_us: int) -> int:
        if seen.cpu is None:
            return seen.size
        policy = self._policy
        wanted = self._suggest(policy, seen, seen.cpu)
        size = min(max(policy.size_at_least(wanted), policy.min), policy.max)
        if size == seen.size or self._changed_us is None:
            return size
        wait_us = OUT_US if size > seen.size else IN_US
        return size if now_us - self._changed_us >= wait_us else seen.size

    def applied(self, size: int, now_us: int) -> None:
        self._changed_us = now_us


def stepwise(policy: Policy, seen: Observation, cpu: float) -> float:
    """Suggest two nodes more or less; five more in an overload."""
    if cpu > OVERLOAD:
        return seen.size + 5 * policy.node
    if abs(cpu - policy.target) <= MARGIN:
        return seen.size
    return seen.size + (2 if cpu > policy.target else -2) * policy.node


def linear(policy: Policy, seen: Observation, cpu: float) -> float:
    """Suggest a size in proportion to the CPU."""
    if abs(cpu - policy.target) <= MARGIN:
        return seen.size
    return math.ceil(seen.size * cpu / policy.target)


def direct(policy: Policy, seen: Observation, cpu: float) -> float:
    """Suggest the maximum at any load."""
    return policy.max


def clairvoyant(policy: Policy, load: float, low: float = 0.0) -> int:
    """Return the least size that keeps the targets at this minute, if it could be set at once."""
    need = effective_cpu(policy, load, load + low)
    size = policy.size_at_least(need / policy.target * 100 * policy.node)
    return min(max(size, policy.min), policy.max)
